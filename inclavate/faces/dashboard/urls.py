from django.urls import path
from django.views.decorators.http import require_safe
from django.views.generic import RedirectView

from inclavate.faces.dashboard import views

urlpatterns = [
    path("", views.home),
    # Browsers ask for it by themselves, for pages of JSON too.
    path("favicon.ico", require_safe(RedirectView.as_view(url="/static/icon.svg"))),
]

from django.urls import path

from inclavate.faces.dashboard import views

urlpatterns = [path("", views.home)]

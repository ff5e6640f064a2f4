from django.urls import path

from inclavate.faces.openai import views

urlpatterns = [
    path("v1/models", views.Models.as_view()),
    path("v1/models/<path:model>", views.Model.as_view()),
]

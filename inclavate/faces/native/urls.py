from django.urls import path

from inclavate.faces.native import views

urlpatterns = [
    path("health", views.health),
    path("v1/generations/capabilities", views.Capabilities.as_view()),
    path("v1/generations", views.Generations.as_view()),
    path("v1/artifacts", views.Artifacts.as_view()),
    path("v1/artifacts/usage", views.ArtifactUsage.as_view()),
    path("v1/artifacts/<str:artifact_id>/meta", views.ArtifactMeta.as_view()),
]

from django.urls import path

from inclavate.faces.native import admin, views

urlpatterns = [
    path("admin/verify", admin.Verify.as_view()),
    path("admin/generations/<str:job_id>", admin.Generation.as_view()),
    path("v1/generations/capabilities", views.Capabilities.as_view()),
    path("v1/generations", views.Generations.as_view()),
    path("v1/artifacts", views.Artifacts.as_view()),
    path("v1/artifacts/usage", views.ArtifactUsage.as_view()),
    path("v1/artifacts/<str:artifact_id>/meta", views.ArtifactMeta.as_view()),
]

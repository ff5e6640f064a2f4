from django.apps import AppConfig


class InclavateConfig(AppConfig):
    name = "inclavate"
    verbose_name = "Inclavate"

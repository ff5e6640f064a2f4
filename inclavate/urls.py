from inclavate.faces.dashboard import urls as dashboard
from inclavate.faces.native import urls as native
from inclavate.faces.openai import urls as openai

urlpatterns = [*native.urlpatterns, *openai.urlpatterns, *dashboard.urlpatterns]

handler404 = "inclavate.faces.boundary.not_found"
handler500 = "inclavate.faces.boundary.server_error"

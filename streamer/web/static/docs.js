"use strict";
// The OpenAPI document of this server, by Swagger UI; its own scheme follows the browser's.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

function withToken(request) {
  const token = sessionStorage.getItem("token"); // as given on the page of recommendations
  if (token) request.headers.Authorization = "Bearer " + token;
  return request;
}

SwaggerUIBundle({
  url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, requestInterceptor: withToken,
  defaultModelsExpandDepth: 0, tryItOutEnabled: true,
});

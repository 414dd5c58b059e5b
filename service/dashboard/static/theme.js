// Light or dark, before the first paint: the user's choice, otherwise the system's setting.
// A classic script in the head, because modules run too late and the page would flash.
"use strict";
{
  const chosen = localStorage.getItem("grpo.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}

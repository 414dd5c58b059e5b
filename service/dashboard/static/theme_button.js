// Light or dark: follows the system until the button is pressed. Charts listen to `theme-changed`.

const STORED = "grpo.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export function installTheme(button) {
  const updateLabel = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
    window.dispatchEvent(new Event("theme-changed"));
  };
  button.addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = wanted;
    localStorage.setItem(STORED, wanted);
    updateLabel();
  });
  system.addEventListener("change", updateLabel);
  updateLabel();
}

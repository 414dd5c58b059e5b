// Light or dark: follows the system until the button is pressed; charts hear of either by `theme-changed`.

const STORED = "grpo.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export function installTheme(button) {
  const say = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
    window.dispatchEvent(new Event("theme-changed"));
  };
  button.addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = wanted;
    localStorage.setItem(STORED, wanted);
    say();
  });
  system.addEventListener("change", say);
  say();
}

"use strict";
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = button.closest("figure").querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {  // a page from disk may not be allowed to: select it, so that Ctrl-C does it
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl-C";
    }
  });
}

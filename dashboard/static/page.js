// Keeps what a person opened, scrolled and focused when a part of the page is replaced.
(() => {
  const reachable = "a[href], button, summary, select, input, textarea, [tabindex]";
  const within = (part, selector) => [...part.querySelectorAll(selector)];
  let before = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target;
    before = {
      part,
      open: within(part, "details").map((one) => one.open),
      places: within(part, ".scroll").map((one) => one.scrollLeft),
      focus: within(part, reachable).indexOf(document.activeElement),
    };
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const part = event.detail.target;
    if (before === null || before.part !== part) return;
    within(part, "details").forEach((one, number) => { one.open = before.open[number] ?? one.open; });
    within(part, ".scroll").forEach((one, number) => { one.scrollLeft = before.places[number] ?? 0; });
    if (before.focus >= 0) within(part, reachable)[before.focus]?.focus({ preventScroll: true });
    before = null;
  });
})();

// A reply takes seconds: shows that a form was sent, and keeps it from being sent twice.
document.addEventListener("submit", (event) => {
  const form = event.target, words = form.dataset.busy;
  if (words === undefined) return;
  if (form.ariaBusy === "true") { event.preventDefault(); return; }
  form.ariaBusy = "true";
  form.querySelector("[role=status]").textContent = words;
});
// A page that comes back from the browser's history waits for nothing. With a keyboard at hand the next words can be typed at once.
addEventListener("pageshow", () => {
  const form = document.querySelector("form[data-busy]");
  if (form === null) return;
  form.ariaBusy = null;
  form.querySelector("[role=status]").textContent = "";
  if (matchMedia("(pointer: fine)").matches) form.querySelector("textarea").focus({ preventScroll: true });
});

// Players are created when they come into view; those of a pair start together.
{
  const pairs = JSON.parse(document.getElementById("replays-data").textContent);
  const elements = [...document.querySelectorAll(".pair")];
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;

  function createPlayers(element) {
    if (element.players) return;
    const replays = pairs[elements.indexOf(element)];
    element.players = [...element.querySelectorAll(".player")].map((box, i) =>
      createReplay(box, replays[i], { autoplay: false })
    );
  }

  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) createPlayers(target);
      for (const player of target.players ?? []) {
        if (isIntersecting && !reducedMotion) player.play();
        else player.pause();
      }
    }
  }, { rootMargin: "120px" });
  for (const element of elements) observer.observe(element);
}

// Tables that are wider than the screen say so, and have a shadow where there is more.
{
  function mark(box) {
    const hidden = box.scrollWidth - box.clientWidth;
    box.parentElement.style.setProperty("--sticky", `${box.querySelector("th").offsetWidth}px`);
    const wide = hidden > 1;
    box.parentElement.classList.toggle("more-left", wide && box.scrollLeft > 1);
    box.parentElement.classList.toggle("more-right", wide && box.scrollLeft < hidden - 1);
    box.closest("figure").querySelector(".hint").hidden = !wide;
    const scrolls = wide || box.scrollHeight > box.clientHeight + 1;
    if (scrolls) box.tabIndex = 0; // so that keys scroll it
    else box.removeAttribute("tabindex");
  }
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => mark(target)));
  for (const box of document.querySelectorAll(".scroll")) {
    box.addEventListener("scroll", () => mark(box), { passive: true });
    sizes.observe(box);
  }
}

// The values behind the points and bars of a chart: under the pointer, where one taps, and with
// the arrow keys.
{
  const REACH = { mouse: 16, touch: 32 }; // pixels from a mark
  const NEAR = 3; // marks that hide each other are told together
  const POINTS_FIRST = 6; // pixels by which a point on a bar is preferred to the bar
  const SHOWN = 5; // marks at one place

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  const ring = document.createElement("div");
  ring.className = "ring";
  let current = null; // the plot whose values are shown

  // All marks of a plot, with their boxes in its pixels.
  function marksOf(plot) {
    const { width, height } = plot.querySelector("svg").getBoundingClientRect();
    plot.tips ??= JSON.parse(plot.dataset.tips);
    return plot.tips.flatMap(([series, marks], group) =>
      marks.map(([left, top, right, bottom, text]) => ({
        series, group, text,
        left: left * width, top: top * height, right: right * width, bottom: bottom * height,
        point: left === right && top === bottom,
      }))
    );
  }

  const outside = (x, low, high) => Math.max(low - x, 0, x - high);
  const distance = (mark, x, y) =>
    Math.hypot(outside(x, mark.left, mark.right), outside(y, mark.top, mark.bottom));

  function nearest(marks, x, y, reach) {
    const order = (mark) => distance(mark, x, y) + (mark.point ? 0 : POINTS_FIRST);
    const found = marks.reduce((a, b) => (order(b) < order(a) ? b : a), marks[0]);
    return found && distance(found, x, y) <= reach ? found : null;
  }

  function line(mark, index, all) {
    const row = document.createElement("p");
    if (mark.series !== all[index - 1]?.series) {
      const name = document.createElement("b");
      name.textContent = mark.series;
      row.append(name, "\n");
    }
    row.append(mark.text);
    return row;
  }

  function show(plot, marks, mark) {
    const same = (other) => mark.point && other.point
      && Math.hypot(other.left - mark.left, other.top - mark.top) <= NEAR;
    const told = [mark, ...marks.filter((other) => other !== mark && same(other))];
    tip.replaceChildren(...told.slice(0, SHOWN).map(line));
    if (told.length > SHOWN) tip.append(`and ${told.length - SHOWN} more here`);
    tip.hidden = false;
    current = plot;

    const drawing = plot.querySelector("svg");
    const edge = mark.point ? 6 : 1;
    const area = drawing.getBoundingClientRect(), frame = plot.getBoundingClientRect();
    Object.assign(ring.style, {
      left: `${area.left - frame.left + mark.left - edge}px`,
      top: `${area.top - frame.top + mark.top - edge}px`,
      width: `${mark.right - mark.left + 2 * edge}px`,
      height: `${mark.bottom - mark.top + 2 * edge}px`,
    });
    ring.classList.toggle("round", mark.point);
    plot.append(ring);

    // Above the mark if there is room, else below; never beyond the sides of the screen.
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const middle = area.left + (mark.left + mark.right) / 2;
    const above = area.top + mark.top - tip.offsetHeight - 12;
    const top = above > 4 ? above : area.top + Math.max(mark.top, 0) + (mark.point ? 14 : 24);
    tip.style.left = `${scrollX + Math.min(Math.max(middle - tip.offsetWidth / 2, 8), Math.max(room, 8))}px`;
    tip.style.top = `${scrollY + top}px`;
  }

  function hide() {
    tip.hidden = true;
    ring.remove();
    current = null;
  }

  function point(plot, event) {
    const area = plot.querySelector("svg").getBoundingClientRect();
    const marks = marksOf(plot);
    const reach = event.pointerType === "mouse" ? REACH.mouse : REACH.touch;
    const mark = nearest(marks, event.clientX - area.left, event.clientY - area.top, reach);
    if (mark) {
      plot.chosen = marks.indexOf(mark);
      show(plot, marks, mark);
    } else if (current === plot) hide();
  }

  // Left and right: the next mark of the chart. Up and down: the same place of another series.
  function move(plot, key) {
    const marks = marksOf(plot);
    const last = marks.length - 1;
    const from = marks[plot.chosen ?? 0];
    if (key === "ArrowRight") plot.chosen = Math.min((plot.chosen ?? -1) + 1, last);
    else if (key === "ArrowLeft") plot.chosen = Math.max((plot.chosen ?? 0) - 1, 0);
    else if (key === "Home") plot.chosen = 0;
    else if (key === "End") plot.chosen = last;
    else {
      const groups = plot.tips.length;
      const group = (from.group + (key === "ArrowDown" ? 1 : groups - 1)) % groups;
      const others = marks.filter((mark) => mark.group === group);
      const place = nearest(others, from.left, from.top, Infinity);
      plot.chosen = marks.indexOf(place);
    }
    show(plot, marks, marks[plot.chosen]);
  }

  const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
  for (const plot of document.querySelectorAll(".plot")) {
    plot.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") point(plot, event);
    });
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") hide();
    });
    plot.addEventListener("click", (event) => point(plot, event));
    plot.addEventListener("focus", () => {
      const marks = marksOf(plot);
      if (!marks.length || !plot.matches(":focus-visible")) return; // a tap shows what is there
      plot.chosen ??= 0;
      show(plot, marks, marks[plot.chosen]);
    });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!KEYS.includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (marksOf(plot).length) move(plot, event.key);
    });
  }
  document.addEventListener("click", (event) => {
    if (current && !current.contains(event.target)) hide();
  });
  addEventListener("resize", hide);
}

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

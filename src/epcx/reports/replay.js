// createReplay(container, data, options) plays one recorded episode inside `container`.
//   data     a payload of epcx.reports.replay.to_page_payload
//   options  keys: the element that receives key events (default: the player itself)
//            autoplay: default true, unless the browser asks for reduced motion
// Returns { root, play, pause, seek, setSpeed, state, destroy }. Players are independent of each other.
var createReplay = (() => {
  "use strict";

  const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
  const STEPS_PER_SECOND = 6;
  const HOLD = 1; // seconds on the last frame before a loop starts again
  const TRAIL = { steps: 3.5, parts: 18, width: 1.4 };
  const CROWD = { agents: 160, parts: 3, width: 0.3 }; // so many leave thinner trails, in fewer parts
  const AGES = { eat: 2.4, grow: 0.7, kill: 2.8, contact: 1.2 }; // in steps

  const ICONS = {
    restart: "M5 5h2.2v14H5zM19 5v14L8.6 12z",
    back: "M15.6 5.4 17 6.8 11.8 12l5.2 5.2-1.4 1.4L9 12z",
    play: "M8 5v14l11-7z",
    pause: "M7 5h3.6v14H7zM13.4 5H17v14h-3.6z",
    forward: "M8.4 5.4 7 6.8 12.2 12 7 17.2l1.4 1.4L15 12z",
    loop: "M7 7h10v3l4-4-4-4v3H5v6h2zm10 10H7v-3l-4 4 4 4v-3h12v-6h-2z",
    trails: "M4 17.5c4-.3 6.300-1.700 8.200-4.700l1.700 1.100C11.700 17.400 8.700 19.200 4 19.500zM3 11.600c2.700-.1 4.700-.8 6.400-2.400l1.300 1.400C8.600 12.500 6.200 13.300 3 13.400zM17 5a4.200 4.200 0 1 1 0 8.400A4.200 4.200 0 0 1 17 5z",
  };

  function element(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);
    return node;
  }

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  }

  function button(label, content, className = "") {
    const node = element("button", `er-button ${className}`, content);
    node.type = "button";
    node.setAttribute("aria-label", label);
    node.title = label;
    return node;
  }

  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
  const easeOut = (x) => 1 - (1 - clamp(x, 0, 1)) ** 3;
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  // A colour between two others, written #rrggbb.
  function mix(a, b, share) {
    const channel = (k) => {
      const [x, y] = [a, b].map((colour) => parseInt(colour.slice(k, k + 2), 16));
      return Math.round(x + share * (y - x));
    };
    return `rgb(${channel(1)} ${channel(3)} ${channel(5)})`;
  }

  function signed(x) {
    const text = Math.abs(x).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    if (text === "0.0") return text;
    return (x < 0 ? "\u2212" : "+") + text;
  }

  // What packing.py packs: bytes in base64.
  const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

  function unpackNumbers({ low, step, levels }) {
    const bytes = bytesOf(levels);
    return Float64Array.from({ length: bytes.length / 2 }, (_, k) => low + step * (bytes[2 * k] + 256 * bytes[2 * k + 1]));
  }

  // A row of flags per frame.
  function unpackFlags(text, frames, things) {
    const bytes = bytesOf(text);
    const flag = (k) => (bytes[k >> 3] >> (k & 7)) & 1;
    return Array.from({ length: frames }, (_, t) => Array.from({ length: things }, (_, i) => flag(t * things + i)));
  }

  // Computes once what does not depend on the time shown.
  function prepare(data) {
    const { frames, pellets } = data;
    const steps = frames - 1;
    const roleOf = data.roles.flatMap((role, r) => Array(role.count).fill(r));
    const agents = roleOf.length;
    const size = roleOf.map((r) => data.roles[r].size);
    const positions = unpackNumbers(data.position);
    const at = (t, i, axis) => positions[(t * agents + i) * 2 + axis];
    const [living, died, killed, touched] = ["alive", "died", "killed", "touched"].map((name) =>
      unpackFlags(data[name], frames, agents)
    );
    const occupied = unpackFlags(data.occupied, frames, pellets);
    const coordinates = unpackNumbers(data.food);
    const food = occupied.map((flags, t) =>
      flags.map((_, f) => [0, 1].map((axis) => coordinates[(t * pellets + f) * 2 + axis]))
    );

    // Tangents of a monotone cubic, which never overshoots the recorded positions.
    const tangents = new Float64Array(positions.length);
    const row = agents * 2;
    for (let k = row; k < positions.length - row; k++) {
      const before = positions[k] - positions[k - row];
      const after = positions[k + row] - positions[k];
      if (before * after > 0) tangents[k] = (2 * before * after) / (before + after);
    }

    const moved = (t, f) =>
      food[t][f][0] !== food[t - 1][f][0] || food[t][f][1] !== food[t - 1][f][1];
    const lastMove = new Int32Array((steps + 1) * pellets).fill(-1e9); // frame of the latest move
    let fixedFood = pellets > 0;
    for (let t = 1; t <= steps; t++) {
      for (let f = 0; f < pellets; f++) {
        const now = moved(t, f);
        if (now) fixedFood = false;
        lastMove[t * pellets + f] = now ? t : lastMove[(t - 1) * pellets + f];
      }
    }

    const eaten = occupied.map((flags, t) =>
      flags.flatMap((flag, f) => (flag && t > 0 && moved(t, f) ? [food[t - 1][f]] : []))
    );
    const kills = died.map((flags, t) =>
      flags.flatMap((flag, victim) => (flag ? [{ victim, killers: killersOf(t, victim) }] : []))
    );
    function killersOf(t, victim) {
      const found = [];
      for (let i = 0; i < agents; i++) {
        if (!killed[t][i] || roleOf[i] === roleOf[victim]) continue;
        const distance = Math.hypot(at(t, i, 0) - at(t, victim, 0), at(t, i, 1) - at(t, victim, 1));
        found.push({ i, gap: distance - size[i] - size[victim] });
      }
      found.sort((a, b) => a.gap - b.gap);
      return found.filter((x, k) => k === 0 || x.gap < 0.001).map((x) => x.i);
    }
    const deaths = kills.some((list) => list.length > 0);

    const alive = living.map((frame) => {
      const count = data.roles.map(() => 0);
      frame.forEach((x, i) => (count[roleOf[i]] += x));
      return count;
    });

    let low = [-data.world_size, -data.world_size];
    let high = [data.world_size, data.world_size];
    for (let k = 0; k < positions.length; k++) {
      low[k % 2] = Math.min(low[k % 2], positions[k]);
      high[k % 2] = Math.max(high[k % 2], positions[k]);
    }
    const span = Math.max(high[0] - low[0], high[1] - low[1]);
    const margin = Math.max(...data.roles.map((role) => role.size)) + 0.012 * span;
    const camera = {
      x: (low[0] + high[0]) / 2,
      y: (low[1] + high[1]) / 2,
      half: span / 2 + margin,
    };

    return {
      steps, agents, pellets, roleOf, size, positions, tangents, food, occupied, lastMove, fixedFood,
      eaten, kills, deaths, living, touched, alive, camera, totals: data.totals,
    };
  }

  // Positions [N, 2], flat, at any time between two frames.
  function interpolate(model, time, out) {
    const row = model.agents * 2;
    const t = clamp(Math.floor(time), 0, Math.max(model.steps - 1, 0));
    const s = clamp(time - t, 0, 1);
    const { positions, tangents } = model;
    if (s === 0 || model.steps === 0) {
      for (let k = 0; k < row; k++) out[k] = positions[t * row + k];
      return out;
    }
    const a = (1 + 2 * s) * (1 - s) ** 2;
    const b = s * (1 - s) ** 2;
    const c = s * s * (3 - 2 * s);
    const d = s * s * (s - 1);
    for (let k = 0, p = t * row; k < row; k++, p++) {
      out[k] = a * positions[p] + b * tangents[p] + c * positions[p + row] + d * tangents[p + row];
    }
    return out;
  }

  // More than two pixels per unit are not seen, and take long to draw.
  const deviceRatio = () => Math.min(window.devicePixelRatio || 1, 2);

  function fit(canvas) {
    const ratio = deviceRatio();
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width / ratio, height / ratio);
    return [context, width / ratio, height / ratio];
  }

  function readTheme(root) {
    const style = getComputedStyle(root);
    const names = ["field", "edge", "grid", "ink", "muted", "line", "food", "obstacle", "dead", "halo", "spark"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  // Concentric discs, the largest first, each a radius, a colour and an opacity: an image to copy.
  const stampCache = new Map();
  function stamp(discs) {
    const key = JSON.stringify([deviceRatio(), discs]);
    if (!stampCache.has(key)) {
      if (stampCache.size > 40) stampCache.clear(); // while a window is resized
      const side = 2 * Math.ceil(discs[0][0] + 1);
      const image = document.createElement("canvas");
      image.width = image.height = side * deviceRatio();
      const context = image.getContext("2d");
      context.scale(deviceRatio(), deviceRatio());
      for (const [r, colour, alpha] of discs) {
        context.globalAlpha = alpha;
        context.fillStyle = colour;
        context.beginPath();
        context.arc(side / 2, side / 2, Math.max(r, 0), 0, 2 * Math.PI);
        context.fill();
      }
      stampCache.set(key, { image, side });
    }
    return stampCache.get(key);
  }

  function drawWorld(canvas, data, model, theme, time, trails) {
    const [context, width] = fit(canvas);
    const { camera, roleOf, size } = model;
    const scale = width / (2 * camera.half);
    const X = (x) => (x - camera.x + camera.half) * scale;
    const Y = (y) => (camera.y + camera.half - y) * scale;
    const frame = Math.min(Math.floor(time), model.steps);
    const now = interpolate(model, time, new Float64Array(model.agents * 2));
    const thin = Math.max(1, width / 520);

    const circle = (x, y, r) => {
      context.moveTo(x + r, y);
      context.arc(x, y, r, 0, 2 * Math.PI);
    };
    const disc = (x, y, r, fill) => {
      context.beginPath();
      circle(x, y, r);
      context.fillStyle = fill;
      context.fill();
    };
    const ring = (x, y, r, stroke, line) => {
      context.beginPath();
      circle(x, y, r);
      context.strokeStyle = stroke;
      context.lineWidth = line;
      context.stroke();
    };

    // The field.
    const s = data.world_size;
    const rim = data.walls ? width * 0.5 / scale - s : 0;
    const left = X(-s - rim) + thin, top = Y(s + rim) + thin;
    const side = 2 * (s + rim) * scale - 2 * thin;
    context.fillStyle = theme.field;
    context.beginPath();
    if (data.walls) context.roundRect(left, top, side, side, 9);
    else context.roundRect(0, 0, width, width, 9);
    context.fill();
    context.strokeStyle = theme.grid;
    context.lineWidth = 1;
    context.beginPath();
    const gap = (s / 4) * 2 ** Math.max(0, Math.ceil(Math.log2(camera.half / (2.25 * s))));
    for (let k = Math.ceil((camera.x - camera.half) / gap); k * gap < camera.x + camera.half; k++) {
      context.moveTo(X(k * gap), 2 * thin);
      context.lineTo(X(k * gap), width - 2 * thin);
    }
    for (let k = Math.ceil((camera.y - camera.half) / gap); k * gap < camera.y + camera.half; k++) {
      context.moveTo(2 * thin, Y(k * gap));
      context.lineTo(width - 2 * thin, Y(k * gap));
    }
    context.stroke();
    context.strokeStyle = theme.edge;
    context.lineWidth = thin;
    context.beginPath();
    if (data.walls) {
      context.roundRect(left, top, side, side, 9);
    } else {
      context.setLineDash([6, 6]);
      context.rect(left, top, side, side);
    }
    context.stroke();
    context.setLineDash([]);
    for (const [x, y] of data.obstacles) disc(X(x), Y(y), data.obstacle_size * scale, theme.obstacle);

    // Recent events, which fade with their age in steps.
    const recent = (list, limit, draw) => {
      for (let t = Math.max(1, Math.ceil(time - limit)); t <= frame; t++) {
        const age = (time - t) / limit;
        if (age < 1) draw(list[t], easeOut(age), 1 - age);
      }
    };

    // Below live agents: the glow of occupied food, trails, the glow of kills, the dead.
    const food = model.food[frame];
    if (model.fixedFood) {
      context.beginPath();
      food.forEach(([x, y], f) => {
        if (model.occupied[frame][f]) circle(X(x), Y(y), data.food_size * scale * 2.6);
      });
      context.globalAlpha = 0.22;
      context.fillStyle = context.strokeStyle = theme.food;
      context.fill();
      context.globalAlpha = 0.9;
      context.lineWidth = thin * 1.2;
      context.stroke();
    }
    context.globalAlpha = 1;

    // Opaque tints, from the oldest part to the newest: fast, and without seams.
    if (trails && time > 0) {
      const crowded = model.agents > CROWD.agents;
      const { parts, width: breadth } = crowded ? CROWD : TRAIL;
      const moment = (part) => Math.max(time - (part / parts) * TRAIL.steps, 0);
      const earlier = interpolate(model, moment(parts), new Float64Array(now.length));
      const later = new Float64Array(now.length);
      context.lineCap = crowded ? "butt" : "round";
      for (let part = parts - 1; part >= 0; part--) {
        interpolate(model, moment(part), later);
        const share = 1 - (time - moment(part)) / TRAIL.steps;
        data.roles.forEach((role, r) => {
          context.beginPath();
          for (let i = 0; i < model.agents; i++) {
            if (roleOf[i] !== r) continue;
            if (later[2 * i] === earlier[2 * i] && later[2 * i + 1] === earlier[2 * i + 1]) continue;
            context.moveTo(X(earlier[2 * i]), Y(earlier[2 * i + 1]));
            context.lineTo(X(later[2 * i]), Y(later[2 * i + 1]));
          }
          context.strokeStyle = mix(theme.field, role.colour, 0.5 * share ** 1.4);
          context.lineWidth = Math.max(1, role.size * scale * breadth * share);
          context.stroke();
        });
        earlier.set(later);
      }
    }

    recent(model.kills, AGES.kill, (list, grown, fade) => {
      context.globalAlpha = 0.42 * fade;
      context.fillStyle = theme.spark;
      context.beginPath();
      for (const { victim } of list) {
        circle(X(now[2 * victim]), Y(now[2 * victim + 1]), size[victim] * scale * (1.4 + 0.6 * grown));
      }
      context.fill();
    });
    context.globalAlpha = 1;

    // The discs of a role are drawn once and copied: hundreds of agents play smoothly.
    const copy = (stamps, alive) => {
      for (let i = 0; i < model.agents; i++) {
        if (model.living[frame][i] !== alive) continue;
        const { image, side } = stamps[roleOf[i]];
        context.drawImage(image, X(now[2 * i]) - side / 2, Y(now[2 * i + 1]) - side / 2, side, side);
      }
    };
    const stamps = (discs) => data.roles.map((role) => stamp(discs(role.size * scale, role.colour)));
    copy(stamps((r, colour) => [
      [0.86 * r, mix(theme.dead, colour, 0.6), 0.9],
      [0.86 * r - thin * 1.2, theme.dead, 1],
    ]), 0);
    copy(stamps((r, colour) => [[r, theme.halo, 1], [Math.max(r - thin * 0.9, 0.75 * r), colour, 0.94]]), 1);

    // Food is drawn above the agents: a covered pellet stays visible.
    const whole = data.food_size * scale;
    const pellet = stamp([[whole + thin, theme.halo, 1], [whole, theme.food, 1]]);
    for (let f = 0; f < model.pellets; f++) {
      const grown = easeOut(0.3 + (time - model.lastMove[frame * model.pellets + f]) / AGES.grow);
      const x = X(food[f][0]), y = Y(food[f][1]);
      if (grown === 1) {
        context.drawImage(pellet.image, x - pellet.side / 2, y - pellet.side / 2, pellet.side, pellet.side);
      } else {
        disc(x, y, whole * grown + thin, theme.halo);
        disc(x, y, whole * grown, theme.food);
      }
    }

    // Above the agents: food eaten, contacts, kills.
    recent(model.eaten, AGES.eat, (places, grown, fade) => {
      context.globalAlpha = fade;
      for (const [x, y] of places) {
        ring(X(x), Y(y), whole * (1.3 + 2.4 * grown), theme.food, thin * (0.6 + 2.4 * fade));
        context.beginPath();
        for (let k = 0; k < 8; k++) {
          const angle = (k * Math.PI) / 4;
          const far = whole * (1.2 + 3.3 * grown);
          circle(X(x) + far * Math.cos(angle), Y(y) + far * Math.sin(angle), whole * 0.24 * fade + 0.4);
        }
        context.fillStyle = theme.food;
        context.fill();
      }
    });
    if (!model.deaths) {
      recent(model.touched, AGES.contact, (touched, grown, fade) => {
        context.beginPath();
        touched.forEach((flag, i) => {
          if (flag) circle(X(now[2 * i]), Y(now[2 * i + 1]), size[i] * scale + thin * (1 + 3 * grown));
        });
        context.globalAlpha = fade;
        context.strokeStyle = theme.spark;
        context.lineWidth = thin * 2;
        context.stroke();
      });
    }
    recent(model.kills, AGES.kill, (list, grown, fade) => {
      // One path for each colour: lines from the killers, and bursts.
      const lines = new Map(), bursts = new Map();
      const path = (paths, colour) => {
        if (!paths.has(colour)) paths.set(colour, new Path2D());
        return paths.get(colour);
      };
      for (const { victim, killers } of list) {
        const x = X(now[2 * victim]), y = Y(now[2 * victim + 1]), r = size[victim] * scale;
        for (const k of killers) {
          const line = path(lines, data.roles[roleOf[k]].colour);
          line.moveTo(X(now[2 * k]), Y(now[2 * k + 1]));
          line.lineTo(x, y);
        }
        const burst = path(bursts, killers.length ? data.roles[roleOf[killers[0]]].colour : theme.ink);
        for (let k = 0; k < 12; k++) {
          const angle = (k + 0.5) * (Math.PI / 6);
          const near = r * (1.2 + 0.6 * grown), far = r * (1.6 + 0.75 * grown);
          burst.moveTo(x + near * Math.cos(angle), y + near * Math.sin(angle));
          burst.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
        }
      }
      context.lineCap = "round";
      for (const [paths, alpha, width] of [[lines, 0.9 * fade, 2.2], [bursts, fade, 0.7 + 1.3 * fade]]) {
        context.globalAlpha = alpha;
        context.lineWidth = thin * width;
        for (const [colour, drawn] of paths) {
          context.strokeStyle = colour;
          context.stroke(drawn);
        }
      }
    });
    context.globalAlpha = 1;
  }

  function drawSpark(canvas, data, model, theme, time) {
    const [context, width, height] = fit(canvas);
    const all = model.totals.reward.flat();
    const low = all.reduce((a, b) => Math.min(a, b), 0);
    const high = all.reduce((a, b) => Math.max(a, b), 0);
    const pad = { left: 5, right: 5, top: 17, bottom: 17 };
    const X = (t) => pad.left + (t / Math.max(model.steps, 1)) * (width - pad.left - pad.right);
    const Y = (v) => height - pad.bottom - ((v - low) / (high - low || 1)) * (height - pad.top - pad.bottom);

    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.fillStyle = theme.muted;
    if (high > 0) context.fillText(signed(high), 0, 10);
    if (low < 0) context.fillText(signed(low), 0, height - 3);
    context.lineWidth = 1;
    context.strokeStyle = theme.edge;
    context.beginPath();
    context.moveTo(0, Y(0));
    context.lineTo(width, Y(0));
    context.stroke();

    const line = (r, alpha, thickness) => {
      context.beginPath();
      for (let t = 0; t <= model.steps; t++) context.lineTo(X(t), Y(model.totals.reward[t][r]));
      context.strokeStyle = data.roles[r].colour;
      context.globalAlpha = alpha;
      context.lineWidth = thickness;
      context.lineJoin = "round";
      context.stroke();
      context.globalAlpha = 1;
    };
    data.roles.forEach((_, r) => line(r, 0.3, 1.5));
    context.save();
    context.beginPath();
    context.rect(0, 0, X(time), height);
    context.clip();
    data.roles.forEach((_, r) => line(r, 1, 2.25));
    context.restore();

    context.strokeStyle = theme.muted;
    context.beginPath();
    context.moveTo(X(time), pad.top - 4);
    context.lineTo(X(time), height - pad.bottom + 4);
    context.stroke();
    const t = Math.min(Math.floor(time), Math.max(model.steps - 1, 0));
    data.roles.forEach((role, r) => {
      const next = model.totals.reward[Math.min(t + 1, model.steps)][r];
      const value = model.totals.reward[t][r] + (time - t) * (next - model.totals.reward[t][r]);
      context.beginPath();
      context.arc(X(time), Y(value), 4, 0, 2 * Math.PI);
      context.fillStyle = role.colour;
      context.fill();
      context.strokeStyle = theme.field;
      context.lineWidth = 1.5;
      context.stroke();
    });
  }

  // One card per role, and one for the food. Returns the element and a function that updates it.
  function createCards(data, model) {
    const fills = [];
    const cards = element("div", "er-cards");
    const last = model.steps;

    const addCard = (name, colour, small) => {
      const swatch = element("span", small ? "er-swatch er-small" : "er-swatch");
      const value = element("span", "er-alive");
      const card = element("section", "er-card",
        element("div", "er-row", swatch, element("span", "er-name", capital(name)), value));
      card.style.setProperty("--colour", colour);
      card.setAttribute("aria-label", name);
      cards.append(card);
      return [card, value];
    };
    const addMeter = (card) => {
      const level = element("i");
      card.append(element("div", "er-meter", level));
      return (share) => (level.style.width = `${100 * share}%`);
    };
    const outOf = (value, count, total, what) =>
      value.replaceChildren(element("b", "", String(count)), ` / ${total} ${what}`);

    data.roles.forEach((role, r) => {
      const [card, value] = addCard(role.name, role.colour, false);
      if (model.deaths || data.roles.length > 1) {
        fills.push((t) => outOf(value, model.alive[t][r], role.count, "alive"));
      } else {
        value.textContent = `${role.count} agents`;
      }
      if (model.deaths) {
        const meter = addMeter(card);
        fills.push((t) => meter(model.alive[t][r] / role.count));
      }
      const metrics = element("dl", "er-metrics");
      card.append(metrics);
      const addMetric = (label, text) => {
        const number = element("dd");
        metrics.append(element("div", "", element("dt", "", label), number));
        fills.push((t) => (number.textContent = text(t)));
      };
      addMetric("Team reward", (t) => signed(model.totals.reward[t][r]));
      if (!model.fixedFood && model.totals.ate[last][r]) {
        addMetric(`${capital(data.food_name)} eaten`, (t) => String(model.totals.ate[t][r]));
      }
      if (model.totals.killed[last][r]) addMetric("Kills", (t) => String(model.totals.killed[t][r]));
      if (!model.deaths && model.totals.touched[last][r]) {
        addMetric("Contacts", (t) => String(model.totals.touched[t][r]));
      }
    });

    if (model.pellets) {
      const [card, value] = addCard(data.food_name, "var(--food)", true);
      if (model.fixedFood) {
        const meter = addMeter(card);
        fills.push((t) => {
          const count = model.occupied[t].filter(Boolean).length;
          outOf(value, count, model.pellets, "occupied");
          meter(count / model.pellets);
        });
      } else {
        value.textContent = `${model.pellets} on the field`;
      }
    }
    return [cards, (t) => fills.forEach((fill) => fill(t))];
  }

  function createHelp() {
    const list = element("dl");
    for (const [keys, what] of [
      ["Space", "play or pause"],
      ["\u2190 \u2192", "one step back, forward"],
      ["Home End", "first, last step"],
      ["+ \u2212", "faster, slower"],
      ["L", "loop"],
      ["T", "trails"],
      ["?", "this help"],
    ]) {
      list.append(element("dt", "", keys), element("dd", "", what));
    }
    const help = element("div", "er-help", list);
    help.setAttribute("role", "note");
    help.setAttribute("aria-label", "Keys");
    help.hidden = true;
    return help;
  }

  return function createReplay(container, data, options = {}) {
    const model = prepare(data);
    const reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const state = { time: 0, playing: false, speed: 1, loop: true, trails: true };
    let held = 0, shown = -1, before = null, request = 0, visible = true, theme = {};

    const restart = button("Restart", icon("restart"), "er-restart");
    const back = button("Step back", icon("back"), "er-back");
    const play = button("Play", icon("play"), "er-play");
    const forward = button("Step forward", icon("forward"), "er-forward");
    const loop = button("Loop", icon("loop"), "er-loop");
    const trails = button("Trails", icon("trails"), "er-trails");
    const helpButton = button("Keyboard help", "?", "er-help-button");
    const help = createHelp();

    const speed = element("select", "er-speed");
    speed.setAttribute("aria-label", "Speed");
    speed.title = "Speed";
    for (const value of SPEEDS) speed.append(new Option(`${value}\u00d7`, value, value === 1, value === 1));

    const scrub = element("input", "er-scrub");
    Object.assign(scrub, { type: "range", min: 0, max: model.steps, step: "any", value: 0 });
    scrub.setAttribute("aria-label", "Step");
    const step = element("span", "er-step");
    const count = element("span", "er-count", "step ", step, ` / ${model.steps}`);
    count.style.minWidth = `${7 + 2 * String(model.steps).length}ch`;

    const world = element("canvas", "er-world");
    world.setAttribute("role", "img");
    const spark = element("canvas", "er-spark");
    spark.setAttribute("role", "img");
    spark.setAttribute("aria-label", "Team rewards over time");
    const [cards, fillCards] = createCards(data, model);

    const root = element("article", "epcx-replay",
      element("div", "er-body",
        element("header", "er-head",
          element("h2", "er-title", data.title),
          element("p", "er-subtitle", `${capital(data.game)} \u00b7 ${data.population}`)),
        element("div", "er-stage", world),
        element("div", "er-controls",
          element("div", "er-time", scrub, count),
          element("div", "er-bar",
            element("div", "er-group", restart, back, play, forward, loop),
            element("div", "er-group", trails, speed, helpButton)),
          help),
        element("div", "er-panel",
          cards,
          element("div", "er-chart", element("p", "er-caption", "Team reward so far"), spark))));
    root.tabIndex = 0;
    root.setAttribute("aria-label", `Replay: ${data.title}`);
    container.append(root);

    function describe(t) {
      const living = data.roles.map((role, r) => `${model.alive[t][r]} of ${role.count} ${role.name} alive`);
      return `${data.game}, step ${t} of ${model.steps}: ${living.join(", ")}`;
    }

    function draw() {
      const t = Math.min(Math.floor(state.time), model.steps);
      if (t !== shown) {
        shown = t;
        step.textContent = String(t);
        fillCards(t);
        scrub.setAttribute("aria-valuetext", `step ${t} of ${model.steps}`);
        world.setAttribute("aria-label", describe(t));
      }
      scrub.value = state.time;
      scrub.style.setProperty("--played", `${(100 * state.time) / Math.max(model.steps, 1)}%`);
      drawWorld(world, data, model, theme, state.time, state.trails);
      drawSpark(spark, data, model, theme, state.time);
    }

    function refresh() {
      if (!request) request = requestAnimationFrame(tick);
    }

    function tick(now) {
      request = 0;
      const passed = before === null ? 0 : Math.min((now - before) / 1000, 0.1);
      before = state.playing ? now : null;
      if (!visible) return;
      if (state.playing) advance(passed);
      draw();
      if (state.playing) refresh();
    }

    function advance(seconds) {
      if (state.time < model.steps) {
        state.time = Math.min(state.time + seconds * state.speed * STEPS_PER_SECOND, model.steps);
        held = 0;
        return;
      }
      held += seconds;
      if (!state.loop) setPlaying(false);
      else if (held >= HOLD && model.steps > 0) state.time = 0;
    }

    function setPlaying(on) {
      if (on && state.time >= model.steps) state.time = 0;
      state.playing = on;
      const label = on ? "Pause" : "Play";
      play.replaceChildren(icon(on ? "pause" : "play"));
      play.setAttribute("aria-label", label);
      play.title = label;
      refresh();
    }

    function seek(time, keepPlaying = false) {
      state.time = clamp(Number(time) || 0, 0, model.steps);
      held = 0;
      if (!keepPlaying) setPlaying(false);
      refresh();
    }

    function setSpeed(value) {
      state.speed = clamp(Number(value) || 1, SPEEDS[0], SPEEDS.at(-1));
      speed.value = state.speed;
      refresh();
    }

    function setToggle(node, name, on) {
      state[name] = on;
      node.setAttribute("aria-pressed", String(on));
      refresh();
    }

    function setHelp(open) {
      help.hidden = !open;
      helpButton.setAttribute("aria-expanded", String(open));
    }

    const stepBack = () => seek(Math.ceil(state.time) - 1);
    const stepForward = () => seek(Math.floor(state.time) + 1);
    const faster = (by) => {
      const k = SPEEDS.findLastIndex((value) => value <= state.speed) + by;
      setSpeed(SPEEDS[clamp(k, 0, SPEEDS.length - 1)]);
    };
    const toggle = () => setPlaying(!state.playing);

    const actions = new Map([
      [" ", toggle],
      ["k", toggle],
      ["ArrowLeft", stepBack],
      ["ArrowRight", stepForward],
      ["Home", () => seek(0)],
      ["End", () => seek(model.steps)],
      ["+", () => faster(1)],
      ["=", () => faster(1)],
      ["-", () => faster(-1)],
      ["l", () => setToggle(loop, "loop", !state.loop)],
      ["t", () => setToggle(trails, "trails", !state.trails)],
      ["?", () => setHelp(help.hidden)],
    ]);

    function onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (event.key === "Escape") return setHelp(false);
      const tag = event.target.tagName;
      if (tag === "SELECT" || (tag === "BUTTON" && event.key === " ")) return;
      const action = actions.get(event.key.length === 1 ? event.key.toLowerCase() : event.key);
      if (!action) return;
      event.preventDefault();
      action();
    }

    const clicks = [
      [restart, () => { seek(0, true); setPlaying(true); }],
      [back, stepBack],
      [play, toggle],
      [forward, stepForward],
      [loop, actions.get("l")],
      [trails, actions.get("t")],
      [helpButton, actions.get("?")],
      [world, toggle],
    ];
    for (const [node, action] of clicks) {
      node.addEventListener("click", (event) => {
        action();
        // After a mouse click the space bar still plays and pauses.
        if (event.detail > 0) root.focus({ preventScroll: true });
      });
    }
    scrub.addEventListener("input", () => seek(scrub.value));
    let chosenByPointer = false;
    speed.addEventListener("pointerdown", () => (chosenByPointer = true));
    speed.addEventListener("keydown", () => (chosenByPointer = false));
    speed.addEventListener("change", () => {
      setSpeed(speed.value);
      if (chosenByPointer) root.focus({ preventScroll: true });
    });

    const seekSpark = (event) => {
      const box = spark.getBoundingClientRect();
      seek((model.steps * (event.clientX - box.left - 5)) / (box.width - 10));
    };
    spark.addEventListener("pointerdown", (event) => {
      spark.setPointerCapture(event.pointerId);
      seekSpark(event);
    });
    spark.addEventListener("pointermove", (event) => {
      if (spark.hasPointerCapture(event.pointerId)) seekSpark(event);
    });

    const keys = options.keys || root;
    keys.addEventListener("keydown", onKey);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const onTheme = () => {
      theme = readTheme(root);
      refresh();
    };
    dark.addEventListener("change", onTheme);
    const sizes = new ResizeObserver(refresh);
    sizes.observe(world);
    sizes.observe(spark);
    const sight = new IntersectionObserver((entries) => {
      visible = entries.at(-1).isIntersecting;
      before = null;
      refresh();
    });
    sight.observe(root);

    function destroy() {
      cancelAnimationFrame(request);
      request = -1;
      sizes.disconnect();
      sight.disconnect();
      dark.removeEventListener("change", onTheme);
      keys.removeEventListener("keydown", onKey);
      root.remove();
    }

    setToggle(loop, "loop", true);
    setToggle(trails, "trails", true);
    setHelp(false);
    onTheme();
    setPlaying(options.autoplay ?? !reducedMotion);

    return {
      root,
      play: () => setPlaying(true),
      pause: () => setPlaying(false),
      seek,
      setSpeed,
      state: () => ({ ...state }),
      destroy,
    };
  };
})();

"""svg.py -- line charts as SVG, readable on light and on dark pages; the same input gives the same bytes."""
import math

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 76
STYLE = """<style>
svg { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d8dee4;
  --c0: #59636e; --c1: #0f7b5f; --c2: #c2410c; --c3: #1d63c4; --c4: #8a3ab9; --c5: #9a6700; --c6: #b4235b; --c7: #3c7d12; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --soft: #9da7b1; --grid: #30363d;
  --c0: #aab4be; --c1: #3fcf9f; --c2: #ff8f5a; --c3: #6cb0ff; --c4: #cf96f5; --c5: #e0b84c; --c6: #ff85b2; --c7: #8ddb52; } }
text { font: 12px system-ui, sans-serif; fill: var(--ink); } .soft { fill: var(--soft); }
.title { font-size: 14px; font-weight: 600; } .grid { stroke: var(--grid); } .line { fill: none; stroke-width: 2; }
</style>"""


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def number(x):
    """A tick's text."""
    if x == 0:
        return "0"
    if abs(x) >= 1e6:
        return f"{x / 1e6:g}M"
    if abs(x) >= 10000:
        return f"{x / 1e3:g}k"
    return f"{x:.4g}"


def ticks(low, high, most=6):
    step = 10 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= most:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Axis:
    def __init__(self, values, log=False, names=None, start=None, places=None):
        self.log, self.names = log, names
        low, high = min(values), max(values)
        if start is not None:
            low = min(low, start)
        if log:
            low, high = math.log(low), math.log(high)
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        pad = 0.04 * (high - low)
        self.low, self.high = low - pad, high + pad
        if start is not None and not log and low == start:
            self.low = low
        self.at = places or (sorted(set(values)) if log else ticks(self.low, self.high))

    def place(self, x, begin, end):
        x = math.log(x) if self.log else x
        return begin + (x - self.low) / (self.high - self.low) * (end - begin)


def legend_rows(names):
    """(x, row) of every name, as many in a row as fit."""
    out, at, row = [], LEFT, 0
    for name in names:
        width = 44 + 7 * len(name)
        if at > LEFT and at + width > WIDTH:
            at, row = LEFT, row + 1
        out.append((at, row))
        at += width
    return out


def chart(title, x_label, y_label, series, log_x=False, zero=False, x_ticks=None, rule=None):
    """series: [(name, colour 0..7, dashed, [(x, y) or (x, y, error)])]. rule: a horizontal line at this height."""
    points = [p for s in series for p in s[3]]
    rows = legend_rows([s[0] for s in series])
    height = HEIGHT + 18 * rows[-1][1]
    ys = [p[1] + sign * (p[2] or 0) for p in points for sign in (-1, 1) if len(p) > 2] + [p[1] for p in points]
    if rule is not None:
        ys.append(rule)
    ax = Axis([p[0] for p in points], log_x, places=x_ticks)
    ay = Axis(ys, start=0 if zero else None)
    px = lambda x: ax.place(x, LEFT, WIDTH - RIGHT)
    py = lambda y: ay.place(y, HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
           f"<title>{escape(title)}</title>", STYLE,
           f'<rect width="{WIDTH}" height="{height}" rx="6" fill="var(--page)"/>',
           f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>']
    for y in ay.at:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        out.append(f'<text class="soft" x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{number(round(y, 10))}</text>')
    for x in ax.at:
        out.append(f'<text class="soft" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(x)}</text>')
    out.append(f'<text class="soft" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 36}" '
               f'text-anchor="middle">{escape(x_label)}</text>')
    out.append(f'<text class="soft" transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
               f'text-anchor="middle">{escape(y_label)}</text>')
    if rule is not None:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(rule):.1f}" y2="{py(rule):.1f}" stroke="var(--soft)"/>')
    for (name, colour, dashed, data), (at, row) in zip(series, rows):
        stroke = f'stroke="var(--c{colour})"' + (' stroke-dasharray="6 4"' if dashed else "")
        data = sorted(data)
        path = " ".join(f"{px(p[0]):.1f},{py(p[1]):.1f}" for p in data)
        out.append(f'<polyline class="line" {stroke} points="{path}"/>')
        for p in data:
            if len(p) > 2 and p[2]:
                out.append(f'<line x1="{px(p[0]):.1f}" x2="{px(p[0]):.1f}" y1="{py(p[1] - p[2]):.1f}" '
                           f'y2="{py(p[1] + p[2]):.1f}" stroke="var(--c{colour})"/>')
            if len(data) <= 40:
                out.append(f'<circle cx="{px(p[0]):.1f}" cy="{py(p[1]):.1f}" r="3" fill="var(--c{colour})"/>')
        y = HEIGHT - 16 + 18 * row
        out.append(f'<line x1="{at}" x2="{at + 22}" y1="{y}" y2="{y}" class="line" {stroke}/>')
        out.append(f'<text x="{at + 28}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"

#!/usr/bin/env python3
"""Runs a command in a terminal of fixed size (tmux) and draws what stands there at the end as an SVG of text.

    docs/pictures/record.py OUT.svg 'target/release/dtrain train' [COLUMNS ROWS]

The command runs in an empty folder with the folder of its program in PATH, and is shown by its bare name after a prompt.
"""
import html
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

CELL, LINE, PAD, TOP = 8.4, 19, 16, 34
COLOURS = dict(zip(range(8), ("#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4")))
TEXT, BACK = "#c9d1d9", "#0d1117"


def capture(command, columns, rows):
    """What the terminal shows when the command has ended, with its escape sequences."""
    program, *rest = shlex.split(command)
    shown = shlex.join([os.path.basename(program), *rest])
    folder, session = os.path.dirname(os.path.abspath(program)), f"record-{os.getpid()}"
    with tempfile.TemporaryDirectory() as here:
        script = f"PATH={shlex.quote(folder)}:$PATH; clear; printf '$ %s\\n' {shlex.quote(shown)}; {shown}; touch done; sleep 60"
        tmux = ["tmux", "-L", session]
        start = [*tmux, "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", here, script]
        subprocess.run(start, check=True, env={**os.environ, "TERM": "xterm-256color"})
        while not os.path.exists(os.path.join(here, "done")):
            time.sleep(0.05)
        shot = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
        subprocess.run([*tmux, "kill-server"], check=True)
    return shot.rstrip("\n").split("\n")


def spans(line):
    """The parts of a line with the style of each: a colour, bold, dim."""
    style, parts = {}, []
    for escape, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", line):
        if text:
            parts.append((text, dict(style)))
            continue
        for code in [int(code or 0) for code in escape.split(";")]:
            if code == 0:
                style.clear()
            elif code in (1, 2):
                style["bold" if code == 1 else "dim"] = True
            elif code == 22:
                style.pop("bold", None), style.pop("dim", None)
            elif 30 <= code <= 37:
                style["fill"] = COLOURS[code - 30]
            elif code == 39:
                style.pop("fill", None)
    return parts


def svg(lines, title):
    columns = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines)
    width, height = int(columns * CELL + 2 * PAD), TOP + len(lines) * LINE + PAD
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'role="img" font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14">',
           f"<title>{html.escape(title)}</title>",
           f'<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>']
    out += [f'<circle cx="{PAD + 6 + 18 * i}" cy="17" r="5" fill="{c}"/>' for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))]
    for row, line in enumerate(lines):
        column = 0
        for text, style in spans(line):
            attributes = f'x="{PAD + column * CELL:.1f}" y="{TOP + row * LINE + 14}" fill="{style.get("fill", TEXT)}"'
            attributes += ' font-weight="bold"' * ("bold" in style) + ' opacity="0.6"' * ("dim" in style)
            # Whatever the font, a part is as wide as its cells.
            attributes += f' textLength="{len(text) * CELL:.1f}" xml:space="preserve"'
            if text.strip():
                out.append(f"<text {attributes}>{html.escape(text)}</text>")
            column += len(text)
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    out, command = sys.argv[1:3]
    columns, rows = map(int, sys.argv[3:5] or (118, 40))
    with open(out, "w") as file:
        file.write(svg(capture(command, columns, rows), command))


if __name__ == "__main__":
    main()

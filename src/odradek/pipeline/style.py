"""Style sheet of a report, light and dark."""

__all__ = ["STYLE"]

STYLE = """
:root {
  --back: #fff; --card: #f6f7f9; --text: #1b1f24; --soft: #59626e; --line: #dfe3e8; --bad: #b3261e; --good: #1a7f37;
  --c0: #2f6fd0; --c1: #e08a00; --c2: #1a9a76; --c3: #b5489a; --c4: #7b61c9; --c5: #c9512b; --c6: #4a9cc7;
  --rest: #9aa3ae;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --card: #1d2127; --text: #e8ebef; --soft: #a3adb9; --line: #333a43; --bad: #ff8a80;
    --good: #57c27a; --c0: #6aa5ff; --c1: #ffb547; --c2: #4fd0aa; --c3: #e58bcf; --c4: #ac97f5; --c5: #ff8f66;
    --c6: #86cdf2; --rest: #6e7885;
  }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif }
body { overflow-wrap: anywhere }
header, main { max-width: 62rem; margin: 0 auto; padding: 0 1.25rem }
header { padding-top: 1.5rem }
main { padding-bottom: 3rem }
h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.3rem; margin: 0 }
h3 { font-size: 1rem; margin: 1rem 0 0 }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.5rem }
.state { font-size: .9rem; padding: .15rem .6rem; border-radius: 1rem; border: 1px solid; vertical-align: middle }
.state.done { color: var(--good) }
.state.failed, .error { color: var(--bad) }
.facts { color: var(--soft); margin: .4rem 0 }
.facts span { margin-right: 1.1rem; display: inline-block }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0 }
.tile { background: var(--card); border-radius: .6rem; padding: .8rem 1rem }
.tile dt { color: var(--soft) }
.tile dd { margin: 0; font-size: 1.45rem; font-variant-numeric: tabular-nums }
.tile dd.more { font-size: .85rem; color: var(--soft) }
figure { margin: 1.25rem 0; padding: 1rem; background: var(--card); border-radius: .6rem; overflow-x: auto }
figcaption { font-weight: 600; margin-bottom: .5rem }
.plot { display: block; width: 100%; min-width: 40rem; height: auto }
.plot text { font-size: 12.5px; fill: var(--soft) }
.plot .value { fill: var(--text) }
.grid { stroke: var(--line) }
.c0 { fill: var(--c0); background: var(--c0) }
.c1 { fill: var(--c1); background: var(--c1) }
.c2 { fill: var(--c2); background: var(--c2) }
.c3 { fill: var(--c3); background: var(--c3) }
.c4 { fill: var(--c4); background: var(--c4) }
.c5 { fill: var(--c5); background: var(--c5) }
.c6 { fill: var(--c6); background: var(--c6) }
.rest { fill: var(--rest); background: var(--rest) }
.bad { fill: var(--bad) }
.legend { list-style: none; padding: 0; margin: .5rem 0 0; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem }
.legend li { max-width: 100% }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin-right: .4em }
details { margin-top: .75rem }
summary { cursor: pointer; color: var(--soft) }
details > div { overflow-x: auto; margin-top: .5rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line) }
th, td { font-weight: 400; vertical-align: top }
thead th { color: var(--soft) }
th:first-child { text-align: left; min-width: 9rem }
"""

#!/usr/bin/env python3
"""Breaks the guards of the control plane one at a time and asks the simulator's random sweep to find each.

A guard that no sabotage needs is no guard: it is removed, or the simulator learns to see what it prevents. Each sabotage
is one line of crates/protocol, of the shared state or of crates/rounds, changed in a copy of the sources; the sweep runs so many seeds and says
which invariant caught it first. One that no seed finds is looked for by the tests of the crate: a second wall behind one that
holds has to be missed by a test at least. Those of the drivers are in `simulations/tests/`; these are those of the machines.
Guards of a supervisor that takes over are looked for where every second fault is the death of one, those of steps in rounds
where each rank has but its shards of the parameters.

    python3 simulations/guards.py --seeds 2000
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SUPERVISOR = "crates/protocol/src/supervisor/"
MEMBER = "crates/protocol/src/member.rs"
NODE = "crates/protocol/src/node.rs"
AGENDA = "crates/protocol/src/agenda.rs"
SHARED = "crates/engine/src/shared_update.rs"
OF_ROUNDS = "crates/rounds/src/"
PROTOCOL_TESTS = ["-p", "dtrain-protocol"]
SHARED_TESTS = ["-p", "dtrain-runtime", "--test", "shared_state"]
ROUNDS_TESTS = ["-p", "dtrain-rounds"]
STORIES = ["-p", "dtrain-simulations", "--test", "scenarios"]
GUARDS = [
    # what the guard does, its file, the line, the line without it
    ("a member takes in no overtaken directive", MEMBER,
     "if directive.number <= self.seen {", "if false {"),
    ("a member acts once per generation and phase", MEMBER,
     "(directive.generation, directive.phase) > self.acted", "(directive.generation, directive.phase) >= self.acted"),
    ("a directive is for one life", MEMBER,
     "(directive.member, directive.incarnation) == (self.config.member, self.config.incarnation)",
     "directive.member == self.config.member"),
    ("a built plane of an older generation is none", MEMBER,
     "!self.over && self.is_here(generation) && synced", "!self.over && synced"),
    ("a rank that stopped says so until it is heard", MEMBER,
     "&& !self.stopped", ""),
    ("rank 0 says what it made for this generation", MEMBER,
     "self.bootstrap = bootstrap;", "self.bootstrap = self.bootstrap.or(bootstrap);"),
    ("a generation meets by what was made for it", SUPERVISOR + "forming.rs",
     "self.bootstrap = bootstrap;", "self.bootstrap = self.bootstrap.or(bootstrap);"),
    ("a report is of the life that was ordered", SUPERVISOR + "forming.rs",
     "if !(asked || report.instance.is_none_or(obeyed)) || report.incarnation != slot.incarnation {",
     "if !(asked || report.instance.is_none_or(obeyed)) {"),
    ("whose silence costs the state is waited for longer", SUPERVISOR + "holders.rs",
     "if needed.contains(&member) { times.progress }", "if needed.contains(&member) && false { times.progress }"),
    ("a run that relapses again and again ends", SUPERVISOR + "recovery.rs",
     "(times > MOST_RELAPSES).then_some(", "false.then_some("),
    ("of two apart the one that is needed for the state stays", SUPERVISOR + "recovery.rs",
     "(!needed.contains(member), ", "(needed.is_empty(), "),
    ("an overtaken report says nothing", SUPERVISOR + "mod.rs",
     "if report.number <= life.report {", "if false {"),
    ("nothing is synchronised before every step is known", SUPERVISOR + "forming.rs",
     "if !self.is_told_for_good(step) {", "if false {"),
    ("nor before it is written down", SUPERVISOR + "forming.rs",
     "self.recorded >= step", "self.progress.known() >= step"),
    ("all have entered the generation", SUPERVISOR + "mod.rs",
     "life.generation == self.generation && test(life)", "test(life)"),
    ("a word of an older generation says nothing of this one", SUPERVISOR + "running.rs",
     "if report.generation == self.generation && self.rank_of(member).is_some() {",
     "if self.rank_of(member).is_some() {"),
    ("the boundary of the generation before is not this one's", SUPERVISOR + "running.rs",
     "at > self.resume_point.step\n", "at >= self.resume_point.step\n"),
    ("a manifest is never ahead of the validations", SUPERVISOR + "running.rs",
     "step <= committed && validations.is_settled(step)", "step <= committed"),
    ("a checkpoint needs all its shards", SUPERVISOR + "checkpoint.rs",
     "if open.shards.len() < world || !ready(id.step) {", "if open.shards.is_empty() || !ready(id.step) {"),
    ("a drain is forgotten with those that had it", SUPERVISOR + "forming.rs",
     "            self.progress.go_back(self.generation, from.step());\n", ""),
    ("a drain waits for whoever holds steps that are in no checkpoint", SUPERVISOR + "holders.rs",
     "        is_there && self.progress.committed() > saved", "        is_there && self.progress.committed() < saved"),
    ("who is asked to leave goes when others hold what it holds", SUPERVISOR + "departure.rs",
     "if self.is_held(able(Some(node))) || ", "if true || "),
    ("one host leaves after the other", SUPERVISOR + "departure.rs",
     "May::GoLater => !somebody_goes && kept_from.is_some_and(|kept| kept < generation)", "May::GoLater => true"),
    ("what a generation left behind is given up", SUPERVISOR + "forming.rs",
     "        self.checkpoints.leave_behind(self.generation);\n", ""),
    ("what was begun is settled before a run goes back", SUPERVISOR + "forming.rs",
     "if !self.settle_checkpoints(now, effects) {", "if false {"),
    ("what was recorded before is acknowledged again", SUPERVISOR + "running.rs",
     "record.step <= self.recorded)", "false && record.step <= self.recorded)"),
    ("a step that is made again is acknowledged once it is told", SUPERVISOR + "mod.rs",
     ".min(self.progress.committed()).min(self.progress.told())", ".min(self.progress.committed())"),
    ("a word of a past life of a node begins no new one", SUPERVISOR + "slots.rs",
     "            Some(_) if self.past_boots.contains(&report.boot) => return,\n", ""),
    ("a new life of a node is told nothing of the one before", SUPERVISOR + "slots.rs",
     "        // Until all of them are known", "        self.nodes.insert(report.node, NodeView::new(now, report));\n        // Until all of them are known"),
    ("an overtaken report of a node says nothing", SUPERVISOR + "slots.rs",
     "Some((boot, number)) if boot == report.boot && report.number <= number => return,\n", ""),
    ("an order is for one life of a node", NODE,
     "(order.node, order.boot) == (self.config.node, self.config.boot)", "order.node == self.config.node"),
    ("an overtaken order changes nothing", NODE,
     "if order.number <= self.seen {", "if false {"),
    ("a life begins when the one before it has ended", NODE,
     "slot.incarnation == Incarnation(0) || slot.ended.is_some();\n            if let", "true;\n            if let"),
    ("recorded validations are pending no more", SUPERVISOR + "forming.rs",
     "due.validate && step > self.validations.done()", "false"),
    ("a checkpoint that was not finished is pending", SUPERVISOR + "forming.rs",
     "due.checkpoint && !self.checkpoints.has(step)", "false"),
    ("agenda: a step that was left counts if the state holds it", AGENDA,
     "self.undecided.take().filter(|record| Some(record.step) == applied)", "self.undecided.take()"),
    ("agenda: a step that was committed is undecided no more", AGENDA,
     "        self.undecided = None;\n        self.at", "        self.at"),
    ("agenda: no step follows a set stop flag", AGENDA,
     "} else if stop == StopFlag::default() {", "} else {"),
    ("agenda: a checkpoint waits until the last one is settled", AGENDA,
     "self.begun.is_none_or(|begun| begun <= signals.settled)", "true"),
    ("agenda: a member that holds too much is waited for", AGENDA,
     "Some(Task::Compute(_)) => !signals.paused,", "Some(Task::Compute(_)) => true,"),
    ("agenda: what is left of a generation is not done in the next", AGENDA,
     "    pub fn handle_left(&mut self, applied: Option<Step>) -> Option<StepRecord> {\n        self.pending.clear();\n",
     "    pub fn handle_left(&mut self, applied: Option<Step>) -> Option<StepRecord> {\n"),
    ("agenda: rank 0 completes what was decided", AGENDA,
     "StateSource::Ranks(_) if rank == Rank(0) => Opening::Complete,", ""),
    ("shared state: a closed state decides nothing", SHARED,
     "Err(word) => word & !1 == after,", "Err(_) => true,"),
    ("shared state: a rank that closes turns to what was decided", SHARED,
     "            self.applied = Some(decided);\n        }\n    }\n\n    /// Looks",
     "            let _ = decided;\n        }\n    }\n\n    /// Looks"),
    ("shared state: a torn block is taken from the journal", SHARED,
     "if kept.load(Ordering::Acquire) != stamped {", "if true {"),
    ("shared state: a block that is done is not done again", SHARED,
     "for number in counted(word.load(Ordering::Acquire), step).unwrap_or(0)..blocks {", "for number in 0..blocks {"),
    ("shared state: counts are of one update", SHARED,
     "(word >> COUNT == step.0).then_some(", "(word >> COUNT > 0).then_some("),
    ("shared state: an update that is done is not completed", SHARED,
     "(!(0..world).all(done)).then_some(", "true.then_some("),
    ("shared state: what is completed is opened", SHARED,
     "            areas.words()[DECIDED].fetch_and(!1, Ordering::SeqCst);\n", ""),
    ("a member waits for a silent supervisor", MEMBER,
     "if silent >= self.config.timeouts.master {", "if silent >= self.config.timeouts.back {"),
    ("a node waits for a silent supervisor", NODE,
     "now >= self.heard + self.config.timeouts.master {", "now >= self.heard + self.config.timeouts.back {"),
    ("a supervisor that stood still blames nobody", SUPERVISOR + "liveness.rs",
     "if overdue <= times.late || self.outcome.is_some() {", "if true {"),
    ("a supervisor that stood still asks so before a word, too", SUPERVISOR + "mod.rs",
     "        self.notice_standstill(now, effects);\n        if self.outcome.is_some() || !self.admit(", "        if self.outcome.is_some() || !self.admit("),
    ("hosts have time to call a supervisor that stood still", SUPERVISOR + "liveness.rs",
     "if far { times.back } else { times.detect }", "times.detect"),
    ("a death that was slept through is heard before its noise", SUPERVISOR + "liveness.rs",
     "        self.trouble.wait_until(now + times.heartbeat);\n", ""),
    ("a pause of our own is not learned from", SUPERVISOR + "progress.rs",
     "(self.moved, self.moved_at) = (now, now);", "self.moved = now;"),
    ("the end of a run is pending", SUPERVISOR + "forming.rs",
     "            ends: due.ends,\n", "            ends: false,\n"),
]
TAKEOVER = [
    ("a member obeys another supervisor only if it names a newer generation", MEMBER,
     "|| self.is_newer(directive.generation))", "|| true)"),
    ("newer is what is above every generation that it has heard of", MEMBER,
     "generation > self.acted.0.max(self.generation)", "generation > self.generation"),
    ("a member counts the words of another supervisor anew", MEMBER,
     "            self.seen = Number(0);\n", ""),
    ("a member answers a question", MEMBER,
     "(self.heard, self.dirty) = (now, true);", "self.heard = now;"),
    ("a beat of a supervisor of the past is no question", MEMBER,
     "} else if self.is_newer(beat.generation) {", "} else {"),
    ("a node obeys another supervisor only if it names a newer generation", NODE,
     "|| other && order.generation <= self.generation {", "{"),
    ("a node counts the orders of another supervisor anew", NODE,
     "            self.seen = Number(0);\n", ""),
    ("a node ends whoever is not named", NODE,
     "if !order.members.iter().any(|life| life.member == *member) {", "if false {"),
    ("a node that obeys a newer supervisor is not heard", SUPERVISOR + "takeover.rs",
     "self.config.taken_over.is_some() && report.generation < self.leads_by()", "true"),
    ("a host leaves once it is known who stays", SUPERVISOR + "slots.rs",
     "report.leaving && !taking_over", "report.leaving"),
    ("lives that another supervisor begins have other numbers", SUPERVISOR + "takeover.rs",
     "Incarnation(u32::try_from(self.leads_by().0).unwrap_or(u32::MAX / 2))", "Incarnation(0)"),
    ("so has the next life in a slot of one that was found", SUPERVISOR + "slots.rs",
     "slot.incarnation.max(before).next()", "slot.incarnation.next()"),
    ("lives that a node has are found", SUPERVISOR + "slots.rs",
     "true => self.find_lives(now, report),", "true => self.add_slots(now, report.node, report.ranks),"),
    ("a life that has ended is not found", SUPERVISOR + "takeover.rs",
     "if life.ended.is_none() {", "if true {"),
    ("a slot that another node has is not taken from it", SUPERVISOR + "takeover.rs",
     "if !room || self.slots.contains_key(&life.member) {", "if !room {"),
    ("newcomers get no number while a host may have it", SUPERVISOR + "takeover.rs",
     "if !self.is_taking_over() || self.recalls(now) {", "if !self.is_taking_over() {"),
    ("hosts of the life before are waited for", SUPERVISOR + "takeover.rs",
     "self.misses_nodes(gone) && self.recalls_until()", "false && self.misses_nodes(gone) && self.recalls_until()"),
    ("hosts that joined the run are waited for", SUPERVISOR + "takeover.rs",
     "joined.is_some_and(|joined| joined.iter().any(is_missing))", "joined.is_some_and(|joined| joined.len() > self.nodes.len())"),
    ("a world is not formed while hosts of the life before may call", SUPERVISOR + "forming.rs",
     " || self.recalls(now);", ";"),
    ("where hosts may be elsewhere they have time to call whoever stood still", SUPERVISOR + "liveness.rs",
     "let far = self.config.most_nodes > 1;", "let far = self.nodes.len() > 1;"),
    ("the host that led is not waited for as long as others", SUPERVISOR + "takeover.rs",
     "let gone = vacant.filter(", "let gone = vacant.filter(|_| false).filter("),
    ("the host that led is waited for, too", SUPERVISOR + "takeover.rs", "now >= self.since + late && ", ""),
    ("who was found and may hold the state is waited for", SUPERVISOR + "takeover.rs",
     "self.recalls(now) || self.is_taking_over() && self.slots.values().any(awaited)", "self.recalls(now)"),
    ("whoever has not answered is asked again", SUPERVISOR + "liveness.rs",
     "                effects.extend(self.question(*member));\n", ""),
    ("whoever has not answered is ended before the others go on", SUPERVISOR + "forming.rs",
     "            self.leave_out_the_silent(now, effects);\n", ""),
    ("whoever was forgotten is dropped", SUPERVISOR + "takeover.rs",
     "forgotten.into_iter().for_each(", "forgotten.into_iter().take(0).for_each("),
    ("nobody of the newest generation is forgotten", SUPERVISOR + "takeover.rs",
     "generation < newest.0 && applied.next() < newest.1", "applied.next() < newest.1"),
    ("nobody is forgotten who is one step behind", SUPERVISOR + "takeover.rs",
     "generation < newest.0 && applied.next() < newest.1", "generation < newest.0"),
    ("a report of who obeys somebody else says nothing", SUPERVISOR + "forming.rs",
     "if !(asked || report.instance.is_none_or(obeyed)) || report.incarnation", "if report.incarnation"),
    ("whoever obeys an older supervisor than its node is found", SUPERVISOR + "forming.rs",
     "let asked = slot.awaited().is_some();", "let asked = false;"),
    ("a supervisor that stood still waits longer for the found", SUPERVISOR + "takeover.rs",
     "now < (since + detect).max(forgiven)", "now < (since + detect)"),
    ("of the slots of a host those that live are found first", SUPERVISOR + "takeover.rs",
     "partition(|life| life.ended.is_none())", "partition(|_| true)"),
    ("a host that starts anew meanwhile gets no numbers", SUPERVISOR + "slots.rs",
     "if !self.is_taking_over() {\n            self.add_slots(", "if true {\n            self.add_slots("),
    ("a gap in a report is filled by others", SUPERVISOR + "progress.rs",
     "if taken < steps.len() && !self.takes_over {", "if taken < steps.len() {"),
    ("what lies behind a gap waits until it is filled", SUPERVISOR + "progress.rs",
     "let steps = &steps[..taken];", "let _ = taken;"),
    ("whoever is behind the newest checkpoint is dropped", SUPERVISOR + "takeover.rs",
     "let are_all_behind = newest.1.next() <", "let are_all_behind = false && newest.1.next() <"),
    ("a generation has enough members when the forgotten are dropped", SUPERVISOR + "forming.rs",
     "            if able.len() >= least {\n                self.form(", "            if true {\n                self.form("),
    ("whoever turns out to be forgotten is dropped", SUPERVISOR + "takeover.rs",
     "if forgotten.is_empty() {\n            return false;", "if true {\n            return false;"),
    ("a generation begins when it is written down who computes what", SUPERVISOR + "forming.rs",
     "!judged || self.awaits_ranges() || !self", "!judged || !self"),
    ("a disk that takes its time for that is nobody's hang", SUPERVISOR + "liveness.rs",
     "            Phase::Sync if self.awaits_ranges() => return None,\n", ""),
    ("whoever finds an ending makes no more steps", SUPERVISOR + "mod.rs",
     "if ending.is_some() { Phase::Finish } else { Phase::Join }", "Phase::Join"),
    ("nobody is told of an ending before it is written", SUPERVISOR + "ending.rs",
     "effects.push(SupervisorEffect::WriteEnding(ending));",
     "effects.push(SupervisorEffect::WriteEnding(ending)); self.handle_ending(now, effects);"),
    ("whoever dies while an ending is written is not missed", SUPERVISOR + "fault.rs",
     "_ if self.is_done() => Answer::Note", "_ if self.is_ending() => Answer::Note"),
    ("hosts that may not have heard the end are waited for", SUPERVISOR + "ending.rs",
     " && !self.may_be_called(now)", ""),
    ("whoever is told of the end late has as long as the others", SUPERVISOR + "takeover.rs",
     "                    self.since = now;\n", ""),
    ("whoever left in order before it answered is no fault", SUPERVISOR + "slots.rs",
     "_ => left,", "_ => false,"),
    ("a host that comes when the run is over is told so", SUPERVISOR + "slots.rs",
     "NodeView { dismissed: self.is_ending(), ", "NodeView { dismissed: false, "),
]

ROUNDS = [
    ("rounds: a window of a gradient that broke off is told", OF_ROUNDS + "carries.rs",
     "self.went = self.sums.exchange(", "let _ = self.sums.exchange("),
    ("rounds: a window of parameters that broke off is told", OF_ROUNDS + "carries.rs",
     "self.went = self.parameters.bring(", "let _ = self.parameters.bring("),
    ("rounds: no gradient travels once an exchange broke off", OF_ROUNDS + "carries.rs",
     "if self.went.is_ok() {\n            let to", "if true {\n            let to"),
    ("rounds: no parameters travel once an exchange broke off", OF_ROUNDS + "carries.rs",
     "if self.went.is_ok() {\n            self.went = self.parameters", "if true {\n            self.went = self.parameters"),
    ("rounds: a pass is brought the window that it asks for", OF_ROUNDS + "brought_parameters.rs",
     "if self.stock.there.as_ref().and_then(place).is_none() {", "if self.stock.there.is_none() {"),
    ("rounds: what a pass was brought is forgotten when it may have changed", OF_ROUNDS + "rounds.rs",
     "    pub fn begin(&mut self, memory: Memory) {\n        self.brought.forget();\n", "    pub fn begin(&mut self, memory: Memory) {\n"),
    ("rounds: who computes nothing takes part in what is read backward", OF_ROUNDS + "rounds.rs",
     "Call::Reads(elements) if gathers =>", "Call::Reads(elements) if gathers && elements.start > elements.end =>"),
    ("rounds: what waits is added up when the step ends", OF_ROUNDS + "window_sums.rs",
     "let is_last = first + active as u32 == round.micro_batches;", "let is_last = false;"),
    ("rounds: subtrees are counted from the first micro-batch of the step", OF_ROUNDS + "folding.rs",
     "micro_batch.trailing_ones() as usize", "{ let _ = micro_batch; at.trailing_ones() as usize }"),
    ("rounds: the last round has as many micro-batches as are left", OF_ROUNDS + "window_sums.rs",
     "let active = (round.micro_batches - first).min(*world as u32) as usize;", "let active = *world;"),
    ("rounds: who needs what is said of each window of a gradient", OF_ROUNDS + "window_sums.rs",
     "            by.narrow(&piece.narrow);\n", ""),
    ("rounds: who has what is said of each window of parameters", OF_ROUNDS + "window_parameters.rs",
     "            by.narrow(narrow);\n", "            let _ = narrow;\n"),
    ("rounds: what is told of micro-batches is added up in their order", OF_ROUNDS + "rounds.rs",
     "starts[m % world] + TRAILER * (m / world)", "TRAILER * m"),
]


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def tests_of(path):
    if path.startswith(OF_ROUNDS):
        return ROUNDS_TESTS
    if os.path.basename(path) in ("departure.rs", "holders.rs", "recovery.rs"):
        return STORIES
    return SHARED_TESTS if path == SHARED else PROTOCOL_TESTS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--only", help="guards whose words hold this")
    parser.add_argument("--takeover", action="store_true", help="only those of a supervisor that takes over")
    parser.add_argument("--rounds", action="store_true", help="only those of steps in rounds")
    parser.add_argument("--check", action="store_true", help="only whether each line is where it was: the project's CI asks")
    parser.add_argument("--target", default=None, help="a target folder that is warm")
    arguments = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    missed = 0
    if arguments.check:
        for words, path, line, _ in [*GUARDS, *TAKEOVER, *ROUNDS]:
            with open(os.path.join(root, path)) as source:
                times = source.read().count(line)
            if times != 1:
                print(f"{path}: the line of the guard \"{words}\" is there {times} times")
                missed += 1
        sys.exit(1 if missed else 0)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "dtrain")
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("target", ".git", "runs"))
        environment = {**os.environ, "CARGO_TARGET_DIR": arguments.target or os.path.join(folder, "target")}
        build = ["cargo", "build", "--quiet", "--release", "-p", "dtrain-simulations", "--example", "sweep"]
        print("| guard | found by | the first of how many seeds |\n|---|---|---|")
        every = not (arguments.takeover or arguments.rounds)
        guards = [(guard, []) for guard in GUARDS if every]
        guards += [(guard, ["all", "supervisor-crash:23"]) for guard in TAKEOVER if every or arguments.takeover]
        guards += [(guard, ["parameters"]) for guard in ROUNDS if every or arguments.rounds]
        for (words, path, line, without), faults in guards:
            if arguments.only and arguments.only not in words:
                continue
            file = os.path.join(copy, path)
            with open(file) as source:
                text = source.read()
            if text.count(line) != 1:
                print(f"| {words} | THE LINE IS THERE {text.count(line)} TIMES | |", flush=True)
                missed += 1
                continue
            with open(file, "w") as source:
                source.write(text.replace(line, without))
            built = run(build, cwd=copy, env=environment)
            if built.returncode != 0:
                print(f"| {words} | DOES NOT COMPILE: {built.stderr[-300:]!r} | |", flush=True)
                missed += 1
            else:
                sweep = os.path.join(environment["CARGO_TARGET_DIR"], "release/examples/sweep")
                done = 0
                found = None
                while done < arguments.seeds and not found:
                    size = 100 if done < 500 else 500
                    output = run([sweep, str(done), str(done + size), *faults]).stdout
                    found = re.search(r"^(\d+) (S\d+|L\d|assertion|panic|\w+) ", output, re.M) if " 0 found" not in output else None
                    done += size
                if found:
                    print(f"| {words} | {found[2]} | seed {found[1]} |", flush=True)
                else:
                    test = ["cargo", "test", "--quiet", *tests_of(path)]
                    output = run(test, cwd=copy, env=environment).stdout
                    failed = re.search(r"^    ([\w:]+)$", output, re.M)
                    print(f"| {words} | {f'`{failed[1]}`' if failed else 'NOTHING'} | none of {done} |", flush=True)
                    missed += not failed
            with open(file, "w") as source:
                source.write(text)
    print(f"{missed} not found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

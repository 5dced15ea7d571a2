//! The ledger from outside: what a sound history gives, and that no change of it goes unseen.

use super::*;
use dtrain_types::{BatchPlan, Epoch, Generation, MicroBatch, MicroRange, Seed, Step, cut_evenly};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn plan() -> BatchPlan {
    BatchPlan::new(Seed(7), 50, 12, 4).unwrap()
}

fn binding(plan: &BatchPlan) -> Binding {
    Binding::new("digits", Seed(7), plan)
}

/// What a step feeds, computed the slow way.
fn fed(plan: &BatchPlan, step: Step) -> (u64, u64) {
    let planned = plan.step(step);
    let samples: Vec<u64> =
        (0..planned.micro_batches).flat_map(|m| plan.micro_batch_samples(&planned, MicroBatch(m))).collect();
    let check = samples.iter().fold(0u64, |sum, sample| sum.wrapping_add(plan.check(&planned, *sample)));
    (samples.len() as u64, check)
}

/// A run in a folder of its own.
struct Run {
    _folder: tempfile::TempDir,
    path: PathBuf,
    plan: BatchPlan,
    ledger: LedgerWriter,
}

impl Run {
    fn new(plan: BatchPlan) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = LedgerWriter::open(&path, &binding(&plan)).unwrap();
        Self { _folder: folder, path, plan, ledger }
    }

    fn steps(&mut self, to: u64, generation: u64, world: u32) -> &mut Self {
        while self.ledger.reached() < Step(to) {
            let step = self.ledger.reached().next();
            let (samples, check) = fed(&self.plan, step);
            let ranges = cut_evenly(self.plan.micro_batches(), world);
            self.ledger.commit(step, Generation(generation), &ranges, samples, check).unwrap();
        }
        self.ledger.flush().unwrap();
        self
    }

    fn reopen(&mut self) -> &mut Self {
        self.ledger = LedgerWriter::open(&self.path, &binding(&self.plan)).unwrap();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn newest(&self) -> Newest {
        Newest { step: self.ledger.reached(), ledger: self.ledger.head_hash() }
    }

    fn audit(&self) -> AuditReport {
        audit(&self.bytes(), &self.plan, Some(self.newest())).unwrap()
    }
}

/// A history with everything in it: three memberships, a crash, a resume, two epochs and a part of a third.
fn history() -> Run {
    let mut run = Run::new(plan());
    run.steps(4, 1, 2).steps(7, 2, 3).reopen().ledger.resume(Step(6)).unwrap();
    run.steps(9, 8, 1).steps(12, 9, 2);
    run
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Problems of a changed history; fails if the audit sees none.
fn problems(run: &Run, changed: &[u8], what: &str) -> Vec<Wrong> {
    match audit(changed, &run.plan, Some(run.newest())) {
        Ok(_) => panic!("not seen: {what}\n{}", String::from_utf8_lossy(changed)),
        Err(problems) => problems.into_iter().map(|problem| problem.wrong).collect(),
    }
}

/// Chains lines anew, as a forger or a faulty writer would.
fn chained(values: &[Value]) -> (Vec<u8>, LineHash) {
    let (mut bytes, mut prev) = (Vec::new(), LineHash::NONE);
    for value in values {
        let mut value = value.clone();
        value["prev"] = json!(prev.to_string());
        let line = serde_json::to_vec(&value).unwrap();
        prev = LineHash::of(&line);
        bytes.extend(line);
        bytes.push(b'\n');
    }
    (bytes, prev)
}

fn values(run: &Run) -> Vec<Value> {
    lines(&run.bytes()).iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn a_sound_history_adds_up() {
    let run = history();
    let report = run.audit();
    let part = EpochUse { epoch: Epoch(2), used: 24, of: 50 };
    let whole = |epoch| EpochUse { epoch: Epoch(epoch), used: 50, of: 50 };
    assert_eq!(report.epochs, [whole(0), whole(1), part]);
    assert!(whole(0).complete() && !part.complete());
    assert_eq!((report.run.as_str(), report.reached, report.samples), ("digits", Step(12), 124));
    assert_eq!((report.spans, report.resumes, report.cancelled), (4, 1, 1));
    assert_eq!((report.generation, report.torn, report.head), (Generation(9), 0, run.ledger.head_hash()));
}

#[test]
fn the_lines_are_those_that_the_design_names() {
    let run = history();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let span = "from to generation ranges samples check prev";
    let expected = ["run plan prev", span, span, "resume prev", span, span];
    assert_eq!(values(&run).iter().map(keys).collect::<Vec<_>>(), expected);
    assert_eq!(values(&run)[1]["ranges"], json!([[0, 2], [2, 3]]));
    let mut prev = LineHash::NONE;
    for line in lines(&run.bytes()) {
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["prev"], prev.to_string());
        prev = LineHash::of(&line[..line.len() - 1]);
    }
}

#[test]
fn a_ledger_without_a_step_is_sound() {
    let run = Run::new(plan());
    let report = run.audit();
    assert_eq!((report.reached, report.epochs.len(), report.samples), (Step(0), 0, 0));
}

#[test]
fn a_line_deleted_doubled_or_swapped_is_seen() {
    let run = history();
    let sound = lines(&run.bytes());
    for i in 0..sound.len() {
        let mut deleted = sound.clone();
        deleted.remove(i);
        problems(&run, &deleted.concat(), &format!("line {} deleted", i + 1));
        let mut doubled = sound.clone();
        doubled.insert(i, sound[i].clone());
        problems(&run, &doubled.concat(), &format!("line {} doubled", i + 1));
        for j in 0..i {
            let mut swapped = sound.clone();
            swapped.swap(i, j);
            problems(&run, &swapped.concat(), &format!("lines {} and {} swapped", j + 1, i + 1));
        }
    }
}

/// Every value inside `value` that is no object, by its path.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(k, v)| leaves(v, &format!("{path}/{k}"), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| leaves(v, &format!("{path}/{i}"), found))
        }
        _ => found.push(path.to_owned()),
    }
}

/// Other values of the same kind, and one of another kind.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(n) => {
            let n = n.as_u64().unwrap();
            vec![json!(n + 1), json!(n.saturating_sub(1)), json!(n ^ 1 << 40), json!(-1), json!("1")]
        }
        Value::String(text) => {
            let flip = |c: char| if c == '0' { '1' } else { '0' };
            let flipped: String =
                text.chars().enumerate().map(|(i, c)| if i == 0 { flip(c) } else { c }).collect();
            vec![json!(flipped), json!(text.to_uppercase() + "A"), json!(""), json!(null)]
        }
        other => panic!("a ledger has no {other}"),
    }
}

#[test]
fn every_field_edited_is_seen() {
    let run = history();
    let sound = values(&run);
    for (i, line) in sound.iter().enumerate() {
        let mut paths = Vec::new();
        leaves(line, "", &mut paths);
        for path in paths {
            for other in others(line.pointer(&path).unwrap()) {
                let mut edited = sound.clone();
                let before = std::mem::replace(edited[i].pointer_mut(&path).unwrap(), other.clone());
                if before == other {
                    continue;
                }
                let text: Vec<u8> = edited.iter().flat_map(|v| (v.to_string() + "\n").into_bytes()).collect();
                problems(&run, &text, &format!("line {}: {path} is {other}, was {before}", i + 1));
            }
        }
    }
}

#[test]
fn a_wrong_line_is_seen_even_when_the_chain_is_whole() {
    // What a faulty writer would leave: the hashes fit, the content does not.
    let run = history();
    let sound = values(&run);
    let edit = |line: usize, path: &str, value: Value| {
        let mut edited = sound.clone();
        *edited[line].pointer_mut(path).unwrap() = value;
        let (bytes, head) = chained(&edited);
        let newest = Newest { ledger: head, ..run.newest() };
        let problems = audit(&bytes, &run.plan, Some(newest)).expect_err("the edit is seen");
        assert!(problems.iter().all(|problem| !matches!(problem.wrong, Wrong::Chain { .. })));
        problems.into_iter().map(|problem| (problem.line, problem.wrong)).next().unwrap()
    };
    let samples = |from, to, expected, got| Wrong::Samples { from: Step(from), to: Step(to), expected, got };
    assert_eq!(edit(1, "/samples", json!(47)), (Some(2), samples(1, 4, 48, 47)));
    assert_eq!(edit(1, "/to", json!(3)).1, samples(1, 3, 36, 48));
    let (first, last) = (Step(1), Step(1));
    assert_eq!(edit(1, "/from", json!(2)), (Some(2), Wrong::Gap { first, last }));
    assert!(matches!(edit(1, "/check", json!("00000000000000ff")).1, Wrong::Check { got: 255, .. }));
    assert!(matches!(edit(1, "/ranges", json!([[0, 2]])).1, Wrong::Ranges { micro_batches: 3, .. }));
    assert!(matches!(edit(1, "/ranges", json!([[0, 2], [1, 3]])).1, Wrong::Ranges { .. }));
    assert!(matches!(edit(1, "/ranges", json!([[0, 4], [4, 3]])).1, Wrong::Ranges { .. }));
    let (before, got) = (Generation(3), Generation(2));
    assert_eq!(edit(1, "/generation", json!(3)), (Some(3), Wrong::GenerationFell { before, got }));
    let (resume, reached) = (Step(8), Step(7));
    assert_eq!(edit(3, "/resume", json!(8)), (Some(4), Wrong::ResumeAhead { resume, reached }));
    assert_eq!(edit(3, "/resume", json!(5)), (Some(5), Wrong::Gap { first: Step(6), last: Step(6) }));
    let (first, last) = (Step(7), Step(7));
    assert_eq!(edit(3, "/resume", json!(7)), (Some(5), Wrong::Twice { first, last }));
    assert!(matches!(edit(0, "/plan/seed", json!(8)).1, Wrong::OtherPlan { .. }));
    assert!(matches!(edit(0, "/plan/samples", json!(0)).1, Wrong::OtherPlan { .. }));
    assert!(matches!(edit(5, "/to", json!(1u64 << 62)).1, Wrong::Backwards { .. }));
    assert!(matches!(edit(5, "/from", json!(0)).1, Wrong::Backwards { .. }));
}

#[test]
fn a_step_covered_twice_without_a_resume_between_is_seen() {
    let run = history();
    let mut values = values(&run);
    values.remove(3);
    let (bytes, head) = chained(&values);
    let problems = audit(&bytes, &run.plan, Some(Newest { ledger: head, ..run.newest() })).unwrap_err();
    let (first, last) = (Step(7), Step(7));
    assert_eq!(problems, [AuditProblem { line: Some(4), wrong: Wrong::Twice { first, last } }]);
    assert_eq!(problems[0].to_string(), "line 4: steps 7 to 7 are covered twice without a resume between");
}

#[test]
fn a_ledger_that_ends_before_the_newest_checkpoint_is_seen() {
    let run = history();
    let sound = lines(&run.bytes());
    let cut = problems(&run, &sound[..5].concat(), "last line lost");
    assert!(matches!(cut[..], [Wrong::Short { step: Step(12), .. }]));
    // An edit of the last line, which no line after it can tell.
    let mut edited = lines(&run.bytes());
    let last = edited.len() - 1;
    edited[last] = String::from_utf8(edited[last].to_vec())
        .unwrap()
        .replacen("\"generation\":", "\"generation\":1", 1)
        .into();
    let problems = audit(&edited.concat(), &run.plan, Some(run.newest())).unwrap_err();
    assert!(
        matches!(problems[..], [AuditProblem { line: Some(6), wrong: Wrong::NoSuchHead { .. } }]),
        "{problems:?}"
    );
    let newest = Newest { step: Step(13), ..run.newest() };
    let wrong = audit(&run.bytes(), &run.plan, Some(newest)).unwrap_err().remove(0).wrong;
    assert_eq!(wrong, Wrong::HeadStep { step: Step(13), reached: Step(12) });
    // A checkpoint written in the background names a line that has gone on.
    assert!(audit(&run.bytes(), &run.plan, Some(Newest { step: Step(11), ..run.newest() })).is_ok());
    // The line is there and reaches the step, but a later resume went behind the checkpoint.
    let newest = run.newest();
    let mut run = run;
    run.ledger.resume(Step(11)).unwrap();
    let wrong = audit(&run.bytes(), &run.plan, Some(newest)).unwrap_err().remove(0).wrong;
    assert_eq!(wrong, Wrong::Short { step: Step(12), reached: Step(11) });
}

#[test]
fn a_torn_last_line_is_told_and_forgiven() {
    let run = history();
    let bytes = run.bytes();
    let first = lines(&bytes)[0].len();
    for cut in 0..=bytes.len() {
        match audit(&bytes[..cut], &run.plan, None) {
            Ok(report) => assert!(cut >= first && report.torn == cut - last_newline(&bytes[..cut])),
            Err(problems) => assert!(cut < first && problems[0].wrong == Wrong::Empty, "{cut}: {problems:?}"),
        }
        // The newest checkpoint's ledger was durable before it; so losing that is never forgiven.
        assert_eq!(audit(&bytes[..cut], &run.plan, Some(run.newest())).is_ok(), cut == bytes.len());
    }
}

fn last_newline(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

#[test]
fn after_any_tear_the_writer_goes_on_with_a_sound_ledger() {
    let sound = history().bytes();
    let last = last_newline(&sound[..sound.len() - 1]);
    for cut in (0..=lines(&sound)[0].len()).chain(last..=sound.len()) {
        for hole in [false, true] {
            let mut run = Run::new(plan());
            let mut torn = sound[..cut].to_vec();
            if hole && cut > last + 20 {
                // The newline reached the disk, a page before it did not.
                torn[last + 3..last + 9].fill(0);
                *torn.last_mut().unwrap() = b'\n';
            }
            fs::write(&run.path, torn).unwrap();
            let reached = run.reopen().ledger.reached();
            run.steps(reached.0 + 3, 9, 2);
            let report = run.audit();
            assert_eq!((report.torn, report.reached), (0, Step(reached.0 + 3)));
        }
    }
}

/// Lines that were not synced reach the disk by pages, in any order.
#[test]
fn what_lies_behind_a_hole_is_torn_and_what_a_manifest_names_is_not_forgiven() {
    let run = history();
    let (sound, newest) = (run.bytes(), run.newest());
    let ends: Vec<usize> = lines(&sound)
        .iter()
        .scan(0, |at, line| {
            *at += line.len();
            Some(*at)
        })
        .collect();
    for (number, end) in ends.iter().enumerate().skip(1) {
        for (from, to) in
            [(ends[number - 1], *end), (ends[number - 1] + 5, *end), (ends[number - 1], *end - 5)]
        {
            let mut holed = sound.clone();
            holed[from..to].fill(0);
            let report = audit(&holed, &run.plan, None).unwrap();
            assert_eq!(report.torn, sound.len() - ends[number - 1]);
            assert!(audit(&holed, &run.plan, Some(newest)).is_err(), "line {number} was durable");
            let mut run = Run::new(plan());
            fs::write(&run.path, holed).unwrap();
            let reached = run.reopen().ledger.reached();
            assert_eq!(reached, report.reached);
            run.steps(reached.0 + 3, 9, 2);
            assert_eq!((run.audit().torn, run.audit().reached), (0, Step(reached.0 + 3)));
        }
    }
}

#[test]
fn damage_in_the_middle_stops_the_writer_and_names_the_line() {
    let run = history();
    let mut bytes = run.bytes();
    let second = lines(&bytes)[0].len();
    bytes[second + 8] = b'2';
    fs::write(&run.path, &bytes).unwrap();
    let error = LedgerWriter::open(&run.path, &binding(&run.plan)).unwrap_err();
    assert!(matches!(&error, LedgerError::Damaged { problem, .. } if problem.line == Some(2)), "{error}");
    assert_eq!(run.bytes(), bytes, "nothing is repaired by guessing");
}

#[test]
fn a_ledger_of_another_run_or_plan_is_refused() {
    let run = history();
    let other = Binding::new("cifar", Seed(7), &run.plan);
    let error = LedgerWriter::open(&run.path, &other).unwrap_err();
    assert!(matches!(error, LedgerError::OtherRun { found, .. } if found == "digits"));
    let plan = BatchPlan::new(Seed(7), 51, 12, 4).unwrap();
    let error = LedgerWriter::open(&run.path, &Binding::new("digits", Seed(7), &plan)).unwrap_err();
    assert!(matches!(error, LedgerError::Damaged { problem: AuditProblem { line: Some(1), .. }, .. }));
}

#[test]
fn steps_out_of_order_never_reach_the_file() {
    let mut run = history();
    let before = run.bytes();
    let ranges = cut_evenly(3, 1);
    let ledger = &mut run.ledger;
    let again = ledger.commit(Step(12), Generation(9), &ranges, 12, 0);
    assert!(matches!(again, Err(LedgerError::OutOfOrder { reached: Step(12), got: Step(12) })));
    let skipped = ledger.commit(Step(14), Generation(9), &ranges, 12, 0);
    assert!(matches!(skipped, Err(LedgerError::OutOfOrder { .. })));
    let fallen = ledger.commit(Step(13), Generation(8), &ranges, 12, 0);
    assert!(matches!(fallen, Err(LedgerError::GenerationFell { .. })));
    let short = ledger.commit(Step(13), Generation(9), &[MicroRange { lo: 0, hi: 2 }], 12, 0);
    assert!(matches!(short, Err(LedgerError::Ranges { micro_batches: 3, .. })));
    assert!(matches!(ledger.resume(Step(13)), Err(LedgerError::ResumeAhead { .. })));
    ledger.flush().unwrap();
    assert_eq!(run.bytes(), before);
}

#[test]
fn the_head_is_that_of_what_is_durable() {
    let mut run = Run::new(plan());
    let (samples, check) = fed(&run.plan, Step(1));
    let before = run.ledger.head_hash();
    run.ledger.commit(Step(1), Generation(1), &cut_evenly(3, 1), samples, check).unwrap();
    assert_eq!((run.ledger.head_hash(), run.ledger.reached()), (before, Step(1)));
    let flushed = run.ledger.flush().unwrap();
    assert_ne!(flushed, before);
    assert_eq!(flushed, run.ledger.head_hash());
    let last = lines(&run.bytes()).pop().unwrap();
    assert_eq!(flushed, LineHash::of(&last[..last.len() - 1]));
    assert_eq!(run.ledger.flush().unwrap(), flushed, "flushing nothing writes nothing");
}

#[test]
fn a_deeply_nested_or_long_line_is_an_error_and_no_crash() {
    let run = history();
    for junk in ["[".repeat(1 << 20), "{\"from\":1".to_owned(), "{}".to_owned(), String::new()] {
        let bytes = [run.bytes(), junk.into_bytes(), b"\n".to_vec()].concat();
        assert!(problems(&run, &bytes, "junk").contains(&Wrong::NotALine));
    }
}

#[test]
fn a_sync_that_fails_costs_no_line_and_is_not_believed_until_the_lines_are_written_again() {
    let mut run = history();
    let durable = run.ledger.head_hash();
    let before = run.bytes().len();
    run.ledger.sync = |_| Err(std::io::Error::from_raw_os_error(5));
    for step in 13..=15 {
        let (samples, check) = fed(&run.plan, Step(step));
        run.ledger.commit(Step(step), Generation(step), &cut_evenly(3, 1), samples, check).unwrap();
        assert!(matches!(run.ledger.flush(), Err(LedgerError::Io { .. })));
        assert_eq!(run.ledger.head_hash(), durable, "no checkpoint is to name a line that may be lost");
    }
    let written = run.bytes();
    // The kernel holds the pages to be clean, and the disk is well: what is not written now would not be synced.
    run.ledger.sync = |file| {
        let modified = file.metadata()?.modified()?;
        assert!(
            modified.elapsed().expect("a clock") < std::time::Duration::from_secs(1),
            "nothing was written"
        );
        file.sync_data()
    };
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    fs::File::options().write(true).open(&run.path).unwrap().set_modified(old).unwrap();
    let head = run.ledger.flush().unwrap();
    assert_eq!(run.bytes(), written);
    let newest = Newest { step: Step(15), ledger: head };
    assert_eq!(audit(&run.bytes(), &run.plan, Some(newest)).unwrap().reached, Step(15));
    // What was dropped cannot be written again.
    run.ledger.sync = |_| Err(std::io::Error::from_raw_os_error(5));
    let (samples, check) = fed(&run.plan, Step(16));
    run.ledger.commit(Step(16), Generation(16), &cut_evenly(3, 1), samples, check).unwrap();
    assert!(run.ledger.flush().is_err());
    let (file, end) = (fs::File::options().write(true).open(&run.path).unwrap(), run.bytes().len() as u64);
    file.set_len(before as u64).and_then(|()| file.set_len(end)).unwrap();
    run.ledger.sync = fs::File::sync_data;
    for _ in 0..2 {
        let error = run.ledger.flush().unwrap_err();
        assert!(matches!(error, LedgerError::Broken { .. }), "{error}");
    }
}

const DISK: &str = "DTRAIN_TEST_SMALL_LEDGER_DISK";

/// Runs itself again on a tmpfs of 16 KiB in a mount namespace of its own, where the system allows one.
#[test]
fn a_full_disk_costs_no_line_once_there_is_room_again() {
    if let Some(disk) = std::env::var_os(DISK) {
        return fill_up(PathBuf::from(disk));
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
        unshare.arg(format!("mount -t tmpfs -o size=16k none \"${DISK}\"; {command}")).arg("sh");
        unshare.env(DISK, folder.path());
        unshare
    };
    if !mounted("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not shown: this system mounts no tmpfs for an ordinary user");
        return;
    }
    let name = "ledger::tests::a_full_disk_costs_no_line_once_there_is_room_again";
    let mut again = mounted("exec \"$@\"");
    let output = again.arg(std::env::current_exe().unwrap()).args(["--exact", name]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn fill_up(disk: PathBuf) {
    let plan = plan();
    let (path, filler) = (disk.join("ledger.jsonl"), disk.join("filler"));
    let mut ledger = LedgerWriter::open(&path, &binding(&plan)).unwrap();
    // Tmpfs gives whole pages: the ledger has one, and the filler takes the rest.
    fs::write(&filler, vec![0; 1 << 16]).unwrap_err();
    let full = (1..).find_map(|step| {
        let (samples, check) = fed(&plan, Step(step));
        // A generation a step, so that each step is a line.
        ledger.commit(Step(step), Generation(step), &cut_evenly(3, 1), samples, check).unwrap();
        Some((step, ledger.head_hash(), ledger.flush().err()?))
    });
    let (step, head, error) = full.unwrap();
    assert!(matches!(&error, LedgerError::Full { path: full } if *full == path), "{error}");
    assert_eq!(error.to_string(), format!("the disk is full: {}", path.display()));
    let report = audit(&fs::read(&path).unwrap(), &plan, Some(Newest { step: Step(step - 1), ledger: head }));
    assert_eq!(report.unwrap().torn, 0, "the half line was taken back");
    fs::remove_file(filler).unwrap();
    let head = ledger.flush().unwrap();
    let report =
        audit(&fs::read(&path).unwrap(), &plan, Some(Newest { step: Step(step), ledger: head })).unwrap();
    assert_eq!((report.reached, report.spans as u64), (Step(step), step));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_the_bytes_goes_unseen(
        at in 0usize..2000, cut in 0usize..40, insert in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        let run = history();
        let sound = run.bytes();
        let at = at % (sound.len() + 1);
        let end = (at + cut).min(sound.len());
        let changed = [&sound[..at], &insert, &sound[end..]].concat();
        match audit(&changed, &run.plan, Some(run.newest())) {
            Ok(report) if changed == sound => prop_assert_eq!(report.torn, 0),
            // Behind the line that the manifest names, junk without a newline looks like a torn line.
            Ok(report) => prop_assert!(changed.starts_with(&sound) && report.torn > 0),
            Err(problems) => prop_assert!(!problems.is_empty() && changed != sound),
        }
    }

    #[test]
    fn every_history_that_the_writer_accepts_adds_up(
        samples in 1u64..60, global in 1u32..20, micro in 1u32..20,
        acts in prop::collection::vec((0u8..4, 1u64..9, 1u32..6), 1..12),
    ) {
        prop_assume!(micro <= global);
        let plan = BatchPlan::new(Seed(7), samples, global, micro).unwrap();
        let mut run = Run::new(plan);
        let (mut generation, mut computed) = (1, 0);
        for (act, amount, world) in acts {
            let reached = run.ledger.reached();
            match act {
                0 => {
                    run.reopen().ledger.resume(Step(reached.0.saturating_sub(amount))).unwrap();
                    generation += amount;
                }
                1 => generation += 1,
                _ => {
                    computed += amount;
                    run.steps(reached.0 + amount, generation, world);
                }
            }
        }
        let report = run.audit();
        let reached = run.ledger.reached();
        prop_assert_eq!(report.reached, reached);
        prop_assert_eq!(report.cancelled, computed - reached.0);
        prop_assert_eq!(report.samples, (1..=reached.0).map(|s| fed(&plan, Step(s)).0).sum::<u64>());
        let whole = reached.0 / plan.steps_per_epoch();
        prop_assert_eq!(report.epochs.iter().filter(|epoch| epoch.complete()).count() as u64, whole);
    }
}

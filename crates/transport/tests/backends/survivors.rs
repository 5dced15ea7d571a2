//! An arena outlives its generations: whoever dies in it, whenever, the survivors build the next one in the same memory.
//!
//! A child is this test binary again, as in `processes.rs`. It is told line by line which generation to form, and says
//! how that went. This file plays the supervisor: nobody forms a generation before all survivors have left the last one.

use dtrain_collective::{Backend, CollectiveError, Geometry, Op, Reduce, Sequence};
use dtrain_oracle::conformance::membership;
use dtrain_oracle::plain::{bits, compute, reference, reference_trailer};
use dtrain_transport::{ArenaFile, Mapping, ShmBackend};
use dtrain_types::{
    Generation, Key, MicroBatch, MicroRange, Seed, Site, Step, Trailer, WorldSize, cut_evenly,
};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

pub const ARENA: &str = "DTRAIN_TEST_ARENA";
pub const LEN: usize = 30_007;
pub const COUNTS: [u32; 2] = [16, 11];
const CHILD: &str = "survivors::be_a_member";
const WORLD: u32 = 4;
const ROUNDS: u64 = 30;

/// Where a rank stops and waits for its death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Nowhere: it dies wherever it happens to be.
    Nowhere,
    /// With its gradients half written, before the first barrier.
    Computing,
    /// At the first barrier of a step. Where each rank has a core the others count on its chunk; where they share cores its
    /// part is theirs already, and they need it no more before the next step.
    Started,
}

/// A generation as one line: number, rank, world, steps, halt, cores.
#[derive(Clone, Copy, Debug)]
struct Form {
    generation: u64,
    rank: usize,
    world: u32,
    steps: u64,
    halt: Halt,
    cores: usize,
}

impl Form {
    fn line(self) -> String {
        let Self { generation, rank, world, steps, halt, cores } = self;
        format!("{generation} {rank} {world} {steps} {} {cores}", halt as u64)
    }

    fn parse(line: &str) -> Self {
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let halt = [Halt::Nowhere, Halt::Computing, Halt::Started][words[4] as usize];
        let (rank, world) = (words[1] as usize, words[2] as u32);
        Self { generation: words[0], rank, world, steps: words[3], halt, cores: words[5] as usize }
    }
}

/// What a rank puts into its slots in every step of one count.
struct Work {
    roots: Vec<Vec<f32>>,
    trailers: Vec<Trailer>,
}

impl Work {
    fn new(backend: &mut dyn Backend, range: MicroRange, count: u32) -> Self {
        let trailers = compute(backend.arena(), range, count, Reduce::Exact);
        let roots = (0..trailers.len()).map(|slot| backend.arena().lease(slot).to_vec()).collect();
        Self { roots, trailers }
    }
}

/// Runs so many steps, one after the other; gives the steps that were done, and why they ended early.
pub fn live(
    backend: &mut dyn Backend,
    range: MicroRange,
    steps: u64,
    halt_at: Halt,
    want: &[Vec<u32>],
) -> (u64, Result<(), CollectiveError>) {
    let work = COUNTS.map(|count| Work::new(backend, range, count));
    for step in 0..steps {
        let which = step as usize % COUNTS.len();
        let halts = |at| halt_at == at && step == 3;
        for (slot, root) in work[which].roots.iter().enumerate() {
            let half = if halts(Halt::Computing) { LEN / 2 } else { LEN };
            backend.arena().lease(slot)[..half].copy_from_slice(&root[..half]);
        }
        if halts(Halt::Computing) {
            halt();
        }
        let op = Op::AllReduce { micro_batches: COUNTS[which], trailers: &work[which].trailers };
        let started = backend.start(Sequence(step), &op);
        if halts(Halt::Started) {
            halt();
        }
        match started.and_then(|()| backend.finish(Sequence(step))) {
            Err(error) => return (step, Err(error)),
            Ok(trailer) => assert_eq!(trailer, reference_trailer(COUNTS[which]), "step {step}, {range:?}"),
        }
        assert!(bits(backend.arena().lease(0)) == want[which], "step {step} has other bits, {range:?}");
        match step {
            2 => say("under way"),
            3 => say("beyond the halt"),
            _ => {}
        }
    }
    (steps, Ok(()))
}

/// Waits for SIGKILL.
fn halt() -> ! {
    say("halted");
    loop {
        std::thread::park();
    }
}

fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().expect("a parent");
}

/// The arena that a child was given, if this process is one.
pub fn given_arena() -> Option<Arc<Mapping>> {
    let path = std::env::var_os(ARENA)?;
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the parent's arena");
    Some(ArenaFile::from_fd(file.into()).and_then(|file| file.map()).expect("an arena"))
}

/// Tells the parent how a generation went.
pub fn report((done, result): (u64, Result<(), CollectiveError>)) {
    match result {
        Ok(()) => say(&format!("done {done}")),
        Err(CollectiveError::Aborted { .. }) => say(&format!("aborted {done}")),
        Err(other) => panic!("after {done} steps: {other:?}"),
    }
}

/// What a child does. As a test of its own, without the environment, it has nothing to do.
#[test]
fn be_a_member() {
    let Some(mapping) = given_arena() else { return };
    let want = COUNTS.map(|count| reference(LEN, count));
    for line in std::io::stdin().lines() {
        let form = Form::parse(&line.expect("a line"));
        let ranges = cut_evenly(COUNTS[0], form.world);
        let member = membership(form.generation, form.rank, &ranges);
        let backend = ShmBackend::new(mapping.clone(), member, Reduce::Exact, &COUNTS);
        let mut backend = backend.expect("a place in the arena").with_cores(form.cores);
        report(live(&mut backend, ranges[form.rank], form.steps, form.halt, &want));
    }
}

/// A member in a process of its own.
pub struct Member {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Member {
    /// A process that does what the test of this name does for children.
    pub fn spawn(file: &ArenaFile, test: &str) -> Self {
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd());
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", test, "--nocapture"]).env(ARENA, path);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child of this test");
        let orders = child.stdin.take().expect("a pipe");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, said }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("it listens");
    }

    /// *Blocks* until it says a line that starts with `word`; gives the number behind it, if there is one.
    pub fn hear(&mut self, word: &str) -> Option<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.said.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "a member ended instead of saying '{word}'");
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().parse().ok();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its exit");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Has every member form a generation, in the order of the list.
fn form_all(
    members: &mut [Member],
    (generation, steps, cores): (u64, u64, usize),
    halt: impl Fn(usize) -> Halt,
) {
    let world = members.len() as u32;
    for (rank, member) in members.iter_mut().enumerate() {
        member.tell(&Form { generation, rank, world, steps, halt: halt(rank), cores }.line());
    }
}

#[test]
fn survivors_of_a_kill_at_any_moment_form_the_next_generation_in_the_same_arena() {
    let file = ArenaFile::create(WorldSize(WORLD), Geometry::bound(LEN, COUNTS[0], Reduce::Exact));
    let file = file.expect("a memfd");
    let mapping = file.map().expect("mapped");
    let key = Key::new(Seed(30), Step(0), MicroBatch(0), Site(0));
    let mut members: Vec<Member> = (0..WORLD).map(|_| Member::spawn(&file, CHILD)).collect();
    for round in 0..ROUNDS {
        let generation = 2 * round + 1;
        let draw = |what: u32| key.bits(round as u32 * 8 + what);
        let victim = draw(0) as usize % members.len();
        let moment = [Halt::Nowhere, Halt::Started, Halt::Nowhere, Halt::Computing][round as usize % 4];
        // Generations that share cores and such that do not follow one another in one arena, in every order.
        let shares = draw(4) % 2 == 1;
        let cores = |shares| if shares { 1 } else { WORLD as usize };
        form_all(&mut members, (generation, u64::MAX, cores(shares)), |rank| {
            if rank == victim { moment } else { Halt::Nowhere }
        });
        for member in &mut members {
            member.hear("under way");
        }
        match moment {
            // The steps of this test take some 100 us: any place in them may be hit.
            Halt::Nowhere => (0..draw(1) % 500_000).for_each(|_| std::hint::spin_loop()),
            Halt::Started | Halt::Computing => assert_eq!(members[victim].hear("halted"), None),
        }
        members[victim].kill();
        members.remove(victim);
        if shares && moment == Halt::Started {
            // Its part is all they need of it, so they end the step without it.
            members.iter_mut().for_each(|member| assert_eq!(member.hear("beyond the halt"), None));
        }
        let watcher = ShmBackend::watcher(mapping.clone(), Generation(generation));
        watcher.abort("a rank was killed");
        let applied: Vec<u64> =
            members.iter_mut().map(|member| member.hear("aborted").expect("a count")).collect();
        let (least, most) = (applied.iter().min(), applied.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "lockstep: {applied:?}");
        match moment {
            Halt::Nowhere => {}
            Halt::Started if shares => {
                assert_eq!(applied, [4, 4, 4], "round {round}: the victim put in its part of step 3")
            }
            _ => assert_eq!(applied, [3, 3, 3], "round {round}: the victim never put in its part of step 3"),
        }
        // The survivors get other ranks than before, and the aborter of the generation before comes once more, late.
        members.rotate_left(draw(2) as usize % 3);
        form_all(&mut members, (generation + 1, 20, cores(draw(5) % 2 == 1)), |_| Halt::Nowhere);
        watcher.abort("late");
        for member in &mut members {
            assert_eq!(member.hear("done"), Some(20), "round {round}");
        }
        members.insert(draw(3) as usize % WORLD as usize, Member::spawn(&file, CHILD));
    }
}

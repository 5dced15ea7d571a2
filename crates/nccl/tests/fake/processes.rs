//! Real processes over the fake library, and one of them is killed inside an all-reduce.
//!
//! A child is this test binary again. It is told on its standard input which world to join, and says what came of it.

use crate::host_device::{HostDevice, HostSlots};
use crate::matrix::by_rank;
use crate::support::{child, is_child, join, library};
use dtrain_collective::{Aborter, Backend, CollectiveError, Geometry, Op, Reduce, Sequence};
use dtrain_nccl::{Communicator, NcclBackend, NcclSetup, UniqueId};
use dtrain_oracle::conformance::membership;
use dtrain_oracle::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_types::{MicroRange, Rank, Trailer, cut_evenly};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEN: usize = 10_007;
const COUNTS: [u32; 3] = [16, 11, 1];
const STEPS: u64 = 12;
/// Set for children that sum by the library's all-reduce.
const RING: &str = "DTRAIN_TEST_RING";
/// What the end of a communicator may take after the abort was asked for.
const WITHIN: Duration = Duration::from_secs(20);

fn ranges(world: usize) -> Vec<MicroRange> {
    cut_evenly(COUNTS[0], world as u32)
}

/// What a member is told: the id, its rank, the world, and for how many steps.
#[derive(Clone, Copy, Debug)]
struct Form {
    id: UniqueId,
    rank: usize,
    world: usize,
    steps: u64,
}

impl Form {
    fn line(&self) -> String {
        let id: String = self.id.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("form {id} {} {} {}", self.rank, self.world, self.steps)
    }

    fn read(line: &str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let byte = |i: usize| u8::from_str_radix(&words[1][2 * i..2 * i + 2], 16).expect("hexadecimal");
        let id = UniqueId(std::array::from_fn(byte));
        let number = |i: usize| words[i].parse::<u64>().expect("a number");
        Self { id, rank: number(2) as usize, world: number(3) as usize, steps: number(4) }
    }
}

fn say(what: &str) {
    println!("\n{what}");
    std::io::stdout().flush().expect("a parent");
}

/// The order of the sums, the same in all children of a test.
fn mode() -> Reduce {
    if std::env::var_os(RING).is_some() { Reduce::Ring } else { Reduce::Exact }
}

/// One step; its bits are held against the plain tree, or the sum by rank.
fn one_step(
    backend: &mut NcclBackend<HostDevice>,
    range: MicroRange,
    seq: u64,
    want: &[(Vec<u32>, Trailer)],
) -> Result<(), CollectiveError> {
    let which = seq as usize % COUNTS.len();
    let trailers = compute(backend.arena(), range, COUNTS[which], mode());
    let op = Op::AllReduce { micro_batches: COUNTS[which], trailers: &trailers };
    backend.start(Sequence(2 * seq), &op)?;
    let trailer = backend.finish(Sequence(2 * seq))?;
    assert_eq!(trailer, want[which].1, "step {seq}");
    assert!(bits(backend.arena().lease(0)) == want[which].0, "step {seq} has other bits");
    Ok(())
}

/// Copies a window between the ranks, as a state is copied.
fn one_copy(
    backend: &mut NcclBackend<HostDevice>,
    rank: usize,
    seq: u64,
    lists: &[[Vec<Rank>; 2]],
) -> Result<(), CollectiveError> {
    let [sources, targets] = &lists[seq as usize % lists.len()];
    before_copy(backend.arena().lease(0), rank, sources);
    backend.start(Sequence(2 * seq + 1), &Op::Copy { sources, targets, len: usize::MAX })?;
    backend.finish(Sequence(2 * seq + 1))?;
    assert!(is_copied(backend.arena().lease(0), rank, sources, targets), "the copy after step {seq}");
    Ok(())
}

/// Steps and copies until they are done or end otherwise.
fn live(
    backend: &mut NcclBackend<HostDevice>,
    rank: usize,
    world: usize,
    steps: u64,
) -> Result<(), CollectiveError> {
    let want = COUNTS.map(|count| match mode() {
        Reduce::Exact => (reference(LEN, count), reference_trailer(count)),
        Reduce::Ring => by_rank(&ranges(world), LEN, count),
    });
    let lists = copies(world as u32);
    for seq in 0..steps {
        one_step(backend, ranges(world)[rank], seq, &want)?;
        one_copy(backend, rank, seq, &lists)?;
        if seq == 2 {
            say("under way");
        }
    }
    Ok(())
}

fn backend(device: HostDevice, arena: HostSlots, communicator: Communicator) -> NcclBackend<HostDevice> {
    let (rank, world) = (communicator.rank(), communicator.world());
    let membership = membership(world as u64, rank, &ranges(world));
    let setup = NcclSetup { membership, mode: mode(), counts: &COUNTS, cuts: &[] };
    NcclBackend::new(device, arena, communicator, setup).expect("a good setup")
}

/// Lines of the parent; `abort` is obeyed at once, by whatever backend is there.
fn orders(current: Arc<Mutex<Option<Aborter>>>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if let Some(reason) = line.strip_prefix("abort ") {
                let aborter = current.lock().expect("no panic").clone();
                aborter.expect("there is a backend").abort(reason);
            } else if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// What a child does that forms one generation after the other.
#[test]
fn be_a_member() {
    if !is_child() {
        return;
    }
    let library = library();
    let current = Arc::new(Mutex::new(None));
    let orders = orders(current.clone());
    let mut device = HostDevice::new().expect("a thread for the stream");
    let mut arena = HostSlots::new(Geometry::bound(LEN, COUNTS[0], mode()));
    while let Ok(line) = orders.recv() {
        let Form { id, rank, world, steps } = Form::read(&line);
        let mut backend = backend(device, arena, join(&library, &id, rank, world));
        *current.lock().expect("no panic") = Some(backend.aborter());
        let result = live(&mut backend, rank, world, steps);
        let parts = backend.dissolve(WITHIN).expect("everything ends within the deadline");
        match result {
            Ok(()) => {
                parts.communicator.expect("it did not fail").finalize(WITHIN).expect("all ranks end it");
                say("right");
            }
            Err(CollectiveError::Aborted { reason }) => say(&format!("aborted {reason}")),
            Err(other) => say(&format!("failed {other}")),
        }
        (device, arena) = (parts.device, parts.arena);
    }
}

/// A rank in a process of its own.
struct Member {
    child: Child,
    orders: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Member {
    fn spawn(test: &str) -> Self {
        Self::run(&mut child(test))
    }

    fn run(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child of this test");
        let orders = child.stdin.take();
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, said }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.orders.as_mut().expect("a pipe"), "{line}").expect("it listens");
    }

    /// *Blocks* until it says a line that starts with `word`; gives the rest of it.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.said.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "a member ended instead of saying '{word}'");
            assert!(!line.starts_with("failed"), "{line}");
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its exit");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // After a failed assertion nobody may stay behind.
        let _already_gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Has every member form a generation, in the order of the list.
fn form(members: &mut [Member], id: UniqueId, steps: u64) {
    let world = members.len();
    for (rank, member) in members.iter_mut().enumerate() {
        member.tell(&Form { id, rank, world, steps }.line());
    }
}

#[test]
fn processes_get_the_same_bits_as_threads() {
    // The id is made here, so this process stands for the one that a supervisor would ask.
    let library = library();
    for world in [1, 2, 3, 5, 8] {
        for ring in [false, true] {
            let member = |_| {
                let mut command = child("processes::be_a_member");
                Member::run(if ring { command.env(RING, "1") } else { &mut command })
            };
            let mut members: Vec<Member> = (0..world).map(member).collect();
            form(&mut members, library.unique_id().expect("an id"), STEPS);
            for member in &mut members {
                assert_eq!(member.hear("right"), "", "world {world}, ring {ring}");
            }
        }
    }
}

#[test]
fn survivors_of_a_kill_abort_in_time_and_form_a_new_communicator_with_the_right_bits() {
    let library = library();
    let mut members: Vec<Member> = (0..4).map(|_| Member::spawn("processes::be_a_member")).collect();
    for round in 0..4u64 {
        form(&mut members, library.unique_id().expect("an id"), u64::MAX);
        members.iter_mut().for_each(|member| drop(member.hear("under way")));
        // A step takes about a millisecond: any place in it may be hit.
        (0..round * 300_000).for_each(|_| std::hint::spin_loop());
        let victim = round as usize % members.len();
        members[victim].kill();
        members.remove(victim);
        for member in &mut members {
            member.tell("abort rank was killed");
        }
        for member in &mut members {
            assert_eq!(member.hear("aborted"), "rank was killed", "round {round}");
        }
        form(&mut members, library.unique_id().expect("an id"), STEPS);
        for member in &mut members {
            assert_eq!(member.hear("right"), "", "round {round}");
        }
        members.push(Member::spawn("processes::be_a_member"));
    }
}

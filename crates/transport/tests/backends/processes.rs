//! Real processes that share an arena, and die.
//!
//! A child is this test binary again, told by its environment to be a rank; the arena is its standard input.

use dtrain_collective::{Backend, CollectiveError, Geometry, Op, Reduce, Sequence};
use dtrain_oracle::conformance::membership;
use dtrain_oracle::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_transport::{ArenaFile, ShmBackend};
use dtrain_types::{MicroRange, WorldSize, cut_evenly};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

const LEN: usize = 10_007;
const COUNTS: [u32; 3] = [16, 11, 1];
const STEPS: u64 = 40;
const RANK: &str = "DTRAIN_TEST_RANK";
const WORLD: &str = "DTRAIN_TEST_WORLD";
const ENDLESS: &str = "DTRAIN_TEST_ENDLESS";

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn ranges(world: u32) -> Vec<MicroRange> {
    cut_evenly(COUNTS[0], world)
}

/// A rank in a process of its own.
struct Rank(Child);

impl Rank {
    fn spawn(file: &ArenaFile, rank: u32, world: u32, endless: bool) -> Self {
        let arena = file.try_clone().expect("a descriptor").into_fd();
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", "processes::be_a_rank", "--nocapture"]);
        command
            .env(RANK, rank.to_string())
            .env(WORLD, world.to_string())
            .env(ENDLESS, u32::from(endless).to_string());
        Self(command.stdin(Stdio::from(arena)).stdout(Stdio::piped()).spawn().expect("a child"))
    }

    /// Reads what the rank says until a line that starts with `word`.
    fn hear(&mut self, word: &str) -> String {
        let lines = BufReader::new(self.0.stdout.take().expect("a pipe")).lines();
        let said: Vec<String> = lines.map_while(Result::ok).collect();
        said.into_iter().find(|line| line.starts_with(word)).unwrap_or_default()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // After a failed assertion nobody may stay behind.
        let _already_gone = self.0.kill();
        let _status = self.0.wait();
    }
}

fn arena(world: u32) -> ArenaFile {
    let geometry = Geometry::plan(LEN, &ranges(world), &COUNTS, Reduce::Exact);
    ArenaFile::create(WorldSize(world), geometry).expect("a memfd")
}

fn one_step(backend: &mut ShmBackend, range: MicroRange, seq: u64) -> Result<(), CollectiveError> {
    let count = COUNTS[seq as usize % COUNTS.len()];
    let trailers = compute(backend.arena(), range, count, Reduce::Exact);
    backend.start(Sequence(seq), &Op::AllReduce { micro_batches: count, trailers: &trailers })?;
    let trailer = backend.finish(Sequence(seq))?;
    assert_eq!(trailer, reference_trailer(count));
    Ok(())
}

/// Copies a window between the ranks; tells whether this rank has what it should have.
fn copy_state(backend: &mut ShmBackend, rank: usize, world: u32, seq: u64) -> Result<bool, CollectiveError> {
    let lists = copies(world);
    let [sources, targets] = &lists[seq as usize % lists.len()];
    before_copy(backend.arena().lease(0), rank, sources);
    backend.start(Sequence(2 * seq + 1), &Op::Copy { sources, targets, len: usize::MAX })?;
    backend.finish(Sequence(2 * seq + 1))?;
    Ok(is_copied(backend.arena().lease(0), rank, sources, targets))
}

/// What a child does. As a test of its own, without the environment, it has nothing to do.
#[test]
fn be_a_rank() {
    let (Some(rank), Some(world)) = (number(RANK), number(WORLD)) else { return };
    let stdin = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().expect("the arena");
    let mapping = ArenaFile::from_fd(stdin).and_then(|file| file.map()).expect("an arena");
    let member = membership(1, rank as usize, &ranges(world));
    let mut backend = ShmBackend::new(mapping, member, Reduce::Exact, &COUNTS).expect("a place in it");
    let range = ranges(world)[rank as usize];
    let steps = if number(ENDLESS) == Some(1) { u64::MAX } else { STEPS };
    let want: Vec<Vec<u32>> = COUNTS.iter().map(|count| reference(LEN, *count)).collect();
    for seq in 0..steps {
        if let Err(error) = one_step(&mut backend, range, 2 * seq) {
            println!("\nfailed {error:?}");
            return;
        }
        assert!(
            bits(backend.arena().lease(0)) == want[2 * seq as usize % COUNTS.len()],
            "step {seq} has other bits"
        );
        match copy_state(&mut backend, rank as usize, world, seq) {
            Ok(copied) => assert!(copied, "the copy after step {seq} gave other bits"),
            Err(error) => return println!("\nfailed {error:?}"),
        }
        if seq == 2 {
            println!("\nrunning");
            std::io::stdout().flush().expect("a parent");
        }
    }
    println!("\nright");
}

#[test]
fn processes_get_the_bits_of_the_plain_tree() {
    for world in 1..=9 {
        let file = arena(world);
        let mut ranks: Vec<Rank> = (0..world).map(|rank| Rank::spawn(&file, rank, world, false)).collect();
        for rank in &mut ranks {
            assert_eq!(rank.hear("right"), "right", "world {world}");
        }
    }
}

#[test]
fn the_survivors_of_a_killed_peer_return_aborted() {
    let world = 3;
    let file = arena(world);
    let mut ranks: Vec<Rank> = (0..world).map(|rank| Rank::spawn(&file, rank, world, true)).collect();
    // All ranks are past their third step, so the victim dies somewhere inside the loop of all-reduces.
    for rank in &mut ranks {
        let pipe = rank.0.stdout.as_mut().expect("a pipe");
        let mut said = Vec::new();
        while !said.ends_with(b"running\n") {
            let mut byte = [0u8];
            assert_eq!(
                pipe.read(&mut byte).expect("a pipe"),
                1,
                "the rank ended: {}",
                String::from_utf8_lossy(&said)
            );
            said.push(byte[0]);
        }
    }
    ranks[1].0.kill().expect("SIGKILL");
    ranks[1].0.wait().expect("its exit");
    // This process stands for the supervisor: it maps the arena as generation 1 of a place that nobody else takes.
    let mapping = file.map().expect("mapped");
    let watcher = ShmBackend::watcher(mapping, dtrain_types::Generation(1));
    watcher.abort("rank 1 was killed");
    for survivor in [0, 2] {
        let said = ranks[survivor].hear("failed");
        assert!(said.starts_with("failed Aborted"), "rank {survivor}: {said:?}");
    }
}

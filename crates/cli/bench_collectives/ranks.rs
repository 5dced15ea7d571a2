//! The ranks of one case: processes around an arena, or threads of this one.
//!
//! A rank process is this program again, with the arena as its standard input; it dies with this one. It says one line,
//! its times or what went wrong, so nobody waits for a reader.

use super::case::Case;
use super::timing::{Said, Times, Way, measure};
use crate::arguments::BenchRank;
use crate::commands::print;
use crate::error::CliError;
use dtrain_collective::{Assignment, Geometry, HostBackend, OpKind};
use dtrain_transport::{ArenaFile, ShmBackend, memory_mesh};
use dtrain_types::{Generation, Rank, WorldSize, counted};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

fn geometry(case: &Case) -> Geometry {
    Geometry::plan(case.floats(), &case.ranges(), &[case.ranks], case.mode())
}

fn membership(case: &Case, rank: u32) -> Assignment {
    Assignment { generation: Generation(1), rank: Rank(rank), ranges: case.ranges() }
}

fn failed(what: impl std::fmt::Display) -> CliError {
    CliError::failed(what.to_string())
}

fn new_arena(case: &Case) -> Result<ArenaFile, CliError> {
    ArenaFile::create(WorldSize(case.ranks), geometry(case)).map_err(failed)
}

/// The times of all ranks, by rank.
///
/// *Errors*: what the first to blame for a lack of them said.
fn all_times(case: &Case, said: Vec<Said>) -> Result<Vec<Times>, CliError> {
    let (name, bytes) = (case.operation.name(), case.bytes);
    let blamed = (0..said.len()).rev().max_by_key(|rank| said[*rank].blame()).unwrap_or(0);
    let what = |how| failed(format!("{name} of {} {how} rank {blamed}", counted(bytes, "byte")));
    match &said[blamed] {
        Said::Wrong(wrong) => Err(what("is wrong on").cause(wrong).hint(
            "in training this would have been a wrong gradient: failing memory does this, or a mistake in dtrain",
        )),
        Said::Died(how) => Err(what("was cut short by").cause(how).hint(
            "somebody killed it, or the kernel did for want of memory: see `dmesg`",
        )),
        Said::Failed(error) => Err(what("failed on").cause(error).hint("this is a mistake in dtrain")),
        Said::Times(_) => Ok(said
            .into_iter()
            .filter_map(|said| if let Said::Times(times) = said { Some(times) } else { None })
            .collect()),
    }
}

/// A rank in a process of its own; it does not outlive this value.
struct RankProcess(Child);

impl Drop for RankProcess {
    fn drop(&mut self) {
        // It has ended already, or nobody needs it any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(case: &Case, rank: u32, arena: &ArenaFile) -> Result<RankProcess, CliError> {
    let text = serde_json::to_string(case).expect("a case is plain data");
    let child = Command::new("/proc/self/exe")
        .args(["bench-rank", "--rank", &rank.to_string(), "--parent", &std::process::id().to_string()])
        .arg(text)
        .stdin(arena.try_clone().map_err(failed)?.into_fd())
        .stdout(Stdio::piped())
        .spawn();
    child.map(RankProcess).map_err(|error| failed("cannot start a rank").because(&error))
}

/// Measures a case with a process for each rank. *Blocks* until all have ended.
///
/// *Errors*: a wrong result, or a rank that died.
pub fn in_processes(case: &Case) -> Result<Vec<Times>, CliError> {
    let arena = new_arena(case)?;
    let spawned = (0..case.ranks).map(|rank| spawn(case, rank, &arena));
    let mut ranks: Vec<RankProcess> = spawned.collect::<Result<_, _>>()?;
    let (tell, told) = channel();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let (mut pipe, tell) = (process.0.stdout.take().expect("it was asked for"), tell.clone());
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = pipe.read_to_string(&mut text);
            // Who does not listen any more has an error to report.
            let _ = tell.send((rank, read.map(|_| text)));
        });
    }
    drop(tell);
    let mut all = vec![Said::Times(Times::default()); ranks.len()];
    for (rank, text) in told {
        let words = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        all[rank] = match words {
            Some(said) => said,
            None => {
                // Its peers wait for it in vain.
                let mapping = arena.map().map_err(failed)?;
                ShmBackend::watcher(mapping, Generation(1)).abort("a rank died");
                let status = ranks[rank].0.wait();
                Said::Died(status.map_or_else(|error| error.to_string(), |status| status.to_string()))
            }
        };
    }
    all_times(case, all)
}

/// What a rank process does.
///
/// *Errors*: it was started by somebody else.
pub fn be_a_rank(arguments: &BenchRank) -> Result<(), CliError> {
    let stranger = || CliError::usage("bench-rank is started by `dtrain bench collectives`").hint("use that");
    let case: Case = serde_json::from_str(&arguments.case).map_err(|_| stranger())?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("cannot be bound to its parent").because(&error))?;
    // The parent may have died between the fork and the line above; then no signal will ever come.
    if getppid().map(Pid::as_raw_pid) != Some(arguments.parent) || arguments.rank >= case.ranks {
        return Err(stranger());
    }
    let arena = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| stranger().because(&error))?;
    let mapping = ArenaFile::from_fd(arena).and_then(|file| file.map()).map_err(failed)?;
    let member = membership(&case, arguments.rank);
    let backend = ShmBackend::new(mapping, member, case.mode(), &[case.ranks]).map_err(failed)?;
    let backend = backend.with_wire(case.wire());
    let said = measure(&case, arguments.rank as usize, Way::Shared(Box::new(backend)));
    print(&serde_json::to_string(&said).expect("times are plain data"))
}

/// The ends of ranks that are threads: as in training, exact sums go through an arena and rings through queues.
fn ways(case: &Case) -> Result<Vec<Way>, CliError> {
    let counts = [case.ranks];
    if case.ring {
        let ends = memory_mesh(case.ranks as usize).into_iter().zip(0..);
        let way = |(end, rank)| {
            HostBackend::new(end, membership(case, rank), case.mode(), geometry(case), &counts)
                .map(|backend| Way::Queues(Box::new(backend.with_wire(case.wire()))))
                .map_err(failed)
        };
        return ends.map(way).collect();
    }
    let mapping = new_arena(case)?.map().map_err(failed)?;
    let way = |rank| {
        ShmBackend::new(mapping.clone(), membership(case, rank), case.mode(), &counts)
            .map(|backend| Way::Shared(Box::new(backend.with_wire(case.wire()))))
            .map_err(failed)
    };
    (0..case.ranks).map(way).collect()
}

/// Measures a case with a thread for each rank. *Blocks* until all have ended.
///
/// *Errors*: a wrong result.
pub fn in_threads(case: &Case) -> Result<Vec<Times>, CliError> {
    let ways = ways(case)?;
    let said: Vec<Said> = std::thread::scope(|scope| {
        let start = |(rank, way)| scope.spawn(move || measure(case, rank, way));
        let threads: Vec<_> = ways.into_iter().enumerate().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Said>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    all_times(case, said)
}

/// What carried a case.
pub fn backend(case: &Case, isolation: crate::config::Isolation) -> &'static str {
    let queues = case.ring && isolation == crate::config::Isolation::Thread;
    if queues { "queues" } else { "shm" }
}

/// *Errors*: a rank left a barrier before another one had come to it, by the clock that they share.
pub fn check_barrier(case: &Case, all: &[Times]) -> Result<(), CliError> {
    if case.operation != OpKind::Barrier {
        return Ok(());
    }
    for sample in 0..case.samples as usize {
        let last = all.iter().map(|times| times.begun[sample]).max();
        let first = all.iter().map(|times| times.ended[sample]).min();
        if last > first {
            return Err(failed(format!("barrier {sample} let a rank through before all had come to it"))
                .hint("this is a mistake in dtrain"));
        }
    }
    Ok(())
}

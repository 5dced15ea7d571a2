//! What is to be simulated, and how the supervisor is set up for it.

use crate::fault::Steps;
use crate::world::Duration;
use crate::{Faults, Job, Sabotage};
use dtrain_protocol::{Every, Losses, Schedule, StartFrom, SupervisorConfig, Timeouts};
use dtrain_types::{Generation, Instance, Reduce, Remirror, Seed, ShardLevel, Step};

/// The knob of all timeouts.
pub(super) const DETECT: Duration = Duration::from_secs(1);

/// How long everyone waits for a supervisor that stands still: in most runs longer than it ever does, in some not.
const MASTER: [Duration; 4] =
    [Duration::from_secs(60), Duration::from_secs(60), Duration::from_secs(60), Duration::from_secs(5)];

/// The generations that are reserved before a run.
pub(super) const RESERVED: Generation = Generation(4);

/// How many ranks hold each shard, where ranks hold shards.
pub(super) const REDUNDANCY: u32 = 2;

/// What ranks share out, as the seed says.
const LEVELS: [ShardLevel; 3] = [ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Parameters];

/// How long the supervisor waits for those that are to come.
pub(super) const JOIN: Duration = Duration::from_secs(10);

/// How often a run validates that does so inside epochs: between two checkpoints, and at others. *Units*: steps.
const OFTEN: u64 = 3;

/// How the ranks reach one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlane {
    /// As the seed says: every rank with every other, with a state each or with shards, or by the memory of hosts, of which there may be one alone.
    Drawn,
    /// Every rank has a connection with every other.
    Links,
    /// Every rank has a connection with every other, and holds shards: of the optimizer's state alone, or of more. Two ranks hold each.
    Shards(ShardLevel),
    /// Ranks of a host meet in its memory, and hosts by their leaders. With one host they share a state, too.
    Hosts,
}

impl DataPlane {
    /// How its ranks make steps.
    pub(super) fn steps(self) -> Steps {
        match self {
            Self::Shards(ShardLevel::Gradients | ShardLevel::Parameters) => Steps::InRounds,
            Self::Shards(ShardLevel::Optimizer) | Self::Drawn | Self::Links | Self::Hosts => Steps::Whole,
        }
    }
}

/// What ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsBy {
    /// Its schedule.
    Schedule,
    /// A validation that is judged to be enough, with two more epochs in the schedule. The last step validates.
    Judgement,
}

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of everything.
    pub seed: Seed,
    /// How many ranks there are.
    pub ranks: u32,
    /// On how many hosts.
    pub nodes: u32,
    /// With how many hosts the run begins; the others join it. None: with all, or with one, as the seed says.
    pub begins_with: Option<u32>,
    /// How they reach one another.
    pub plane: DataPlane,
    /// When shards have as many holders again of which one was lost.
    pub remirror: Remirror,
    /// How many steps are made.
    pub steps: u64,
    /// After how many of them the run validates, each time. None: after each epoch, or more often, as the seed says.
    pub validates: Option<u64>,
    /// What ends the run behind them.
    pub ends: EndsBy,
    /// What goes wrong.
    pub faults: Faults,
    /// How often a rank that is lost is replaced.
    pub max_restarts: u32,
    /// Whether the story is told: for people, after a violation.
    pub story: bool,
    /// Which promise is broken on purpose.
    pub sabotage: Option<Sabotage>,
}

impl Settings {
    /// 8 ranks on 2 hosts or one, 30 steps, all faults.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self {
            seed: Seed(seed),
            ranks: 8,
            nodes: 2,
            begins_with: None,
            plane: DataPlane::Drawn,
            remirror: Remirror::Now,
            steps: 30,
            validates: None,
            ends: EndsBy::Schedule,
            faults: Faults::all(),
            max_restarts: 100,
            story: false,
            sabotage: None,
        }
    }

    /// The same with what the seed says of hosts written out.
    pub fn drawn(self) -> Self {
        let (plane, nodes) = match (self.plane, self.seed.0 % 4) {
            (DataPlane::Drawn, 1) => (DataPlane::Hosts, 1),
            (DataPlane::Drawn, 2) => (DataPlane::Shards(LEVELS[(self.seed.0 / 4 % 3) as usize]), self.nodes),
            (DataPlane::Drawn, 3) => (DataPlane::Hosts, self.nodes),
            (DataPlane::Drawn, _) => (DataPlane::Links, self.nodes),
            (given, _) => (given, self.nodes),
        };
        let remirror = match (self.plane, self.seed.0 / 12 % 2) {
            (DataPlane::Drawn, 1) => Remirror::Lazy,
            _ => self.remirror,
        };
        let alone = self.plane == DataPlane::Drawn && self.seed.0 / 24 % 8 == 7;
        let begins_with = self.begins_with.or(Some(if alone { 1 } else { nodes }));
        let often =
            self.plane == DataPlane::Drawn && self.ends == EndsBy::Schedule && self.seed.0 / 192 % 4 == 3;
        let validates = self.validates.or(often.then_some(OFTEN));
        Self { plane, nodes, begins_with, remirror, validates, ..self }
    }
}

/// The timeouts of everyone, as the seed says.
pub(super) fn times(settings: &Settings) -> Timeouts {
    let master = MASTER[(settings.seed.0 / 4 % 4) as usize];
    Timeouts::derive(DETECT).and_then(|times| times.with_master(master)).expect("in range")
}

/// What is trained: what the plain run makes, whatever ends the other.
pub(super) fn job(settings: &Settings) -> Job {
    let mut job = match settings.plane {
        DataPlane::Shards(_) => Job::with_odd_steps(settings.steps),
        DataPlane::Drawn | DataPlane::Links | DataPlane::Hosts => Job::new(settings.steps),
    };
    if let Some(steps) = settings.validates {
        job.schedule.validation = Every::Steps(steps);
    }
    if settings.ends == EndsBy::Judgement {
        let each = settings.validates.unwrap_or(job.schedule.steps_per_epoch);
        assert!(settings.steps.is_multiple_of(each), "only what is validated is judged");
        // Where nothing but the end makes a checkpoint due.
        job.schedule.checkpoint = Every::Steps(7);
    }
    job
}

/// What the supervisor and the ranks know of the end before any validation.
pub(super) fn schedule(settings: &Settings, job: &Job) -> Schedule {
    match settings.ends {
        EndsBy::Schedule => job.schedule,
        EndsBy::Judgement => {
            let last = Step(settings.steps + 2 * job.schedule.steps_per_epoch);
            Schedule { last, ..job.schedule }
        }
    }
}

/// The supervisor of a simulation.
pub(super) fn config(settings: &Settings, job: &Job, timeouts: Timeouts) -> SupervisorConfig {
    SupervisorConfig {
        instance: Instance(77),
        wanted_nodes: settings.begins_with.unwrap_or(settings.nodes),
        most_nodes: settings.nodes,
        most_ranks: settings.ranks,
        min_ranks: 1,
        join_timeout: super::settings::JOIN,
        timeouts,
        losses: Losses::AreReplaced { max_restarts: settings.max_restarts },
        reduce: Reduce::Exact,
        sharded: match settings.plane {
            DataPlane::Shards(_) if settings.sabotage != Some(Sabotage::PartAsWhole) => {
                Some(settings.remirror)
            }
            _ => None,
        },
        balance: true,
        batches: job.plan,
        schedule: schedule(settings, job),
        start: StartFrom::Fresh,
        taken_over: None,
        first_generation: Generation(1),
        reserved: RESERVED,
    }
}

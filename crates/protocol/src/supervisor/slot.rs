//! What the supervisor knows of a slot for a member, of the life in it and of the node that has it.
//!
//! This file decides nothing.

use crate::{Activity, BootId, Bootstrap, NodeReport, Number, Profile, Stage};
use dtrain_types::{Generation, Holding, Incarnation, Instance, Instant, NodeId, Step};
use std::collections::VecDeque;

/// One member's place.
#[derive(Debug)]
pub(super) struct Slot {
    pub node: NodeId,
    /// The newest life that was issued; 0 is none yet.
    pub incarnation: Incarnation,
    pub place: Place,
    /// When its lives of the last minute after the first were started.
    pub restarts: VecDeque<Instant>,
    /// Its life was begun before ours, and obeyed this life of the supervisor when it was found.
    pub found: Option<Instance>,
    /// Whether a life of it was in a generation.
    pub took_part: bool,
}

/// What comes after the process of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Another one, if it may still be restarted.
    Restart,
    /// None: the slot stays empty.
    Nothing,
}

/// What is in a slot.
#[derive(Debug)]
pub(super) enum Place {
    /// Nothing; its next life is to begin then.
    Empty { until: Instant },
    /// A process that was ordered and has not reported.
    Starting { since: Instant },
    /// A member that has reported.
    Live(Box<Life>),
    /// A process that is to end, by order or by force, and has not yet; `next` tells whether another life follows.
    Ending { since: Instant, next: bool },
    /// Nothing, for good.
    Out,
}

/// One life of a member, as its newest Report shows it.
#[derive(Debug)]
pub(super) struct Life {
    pub profile: Profile,
    pub heard: Instant,
    /// Since when its link is away.
    pub cut: Option<Instant>,
    /// Its newest Report.
    pub report: Number,
    /// The newest Directive for it, and the newest that it echoed.
    pub number: Number,
    pub echoed: Number,
    /// The generation that it is in.
    pub generation: Generation,
    pub stage: Stage,
    pub activity: Activity,
    pub applied: Option<Step>,
    /// The first step that its newest Report has a record of: it keeps none before.
    pub tells: Option<Step>,
    /// What it holds of its state.
    pub holding: Holding,
    /// Others gave it their shards of a state, or may have: without a state of its own it has parts of one in memory, and cannot begin a run.
    pub was_given: bool,
    /// It was found in an older generation than others: it may be further behind them than it and they had said by then.
    pub was_older: bool,
    /// What it made for its generation to meet.
    pub bootstrap: Option<Bootstrap>,
    /// It takes no part: its fingerprint does not fit, or its node leaves. It is told to go.
    pub refused: bool,
}

/// A host's node, as its newest report shows it.
#[derive(Debug)]
pub(super) struct NodeView {
    pub boot: BootId,
    pub report: Number,
    /// The newest order for it, and the newest that it echoed.
    pub number: Number,
    pub echoed: Number,
    pub heard: Instant,
    pub host: String,
    /// How many ranks it offers.
    pub ranks: u32,
    /// It asks to leave.
    pub leaving: bool,
    /// It goes: its members are refused.
    pub released: bool,
    /// The generation behind which it was not let go at first, because others lacked what it held.
    pub kept_from: Option<Generation>,
    /// It is told that the run is over.
    pub dismissed: bool,
    /// It was said that it is away.
    pub away: bool,
}

impl Slot {
    /// An empty one, in which `before` was the newest life.
    pub fn new(node: NodeId, now: Instant, before: Incarnation) -> Self {
        let place = Place::Empty { until: now };
        Self { node, incarnation: before, place, restarts: VecDeque::new(), found: None, took_part: false }
    }

    /// Since when we know of a process that the supervisor before us began, and that has not told us where it stands.
    pub fn awaited(&self) -> Option<Instant> {
        let Place::Starting { since } = self.place else { return None };
        self.found.map(|_| since)
    }

    pub fn life(&self) -> Option<&Life> {
        if let Place::Live(life) = &self.place { Some(life) } else { None }
    }

    pub fn life_mut(&mut self) -> Option<&mut Life> {
        if let Place::Live(life) = &mut self.place { Some(life) } else { None }
    }

    /// The life that can take part in a generation.
    pub fn able(&self) -> Option<&Life> {
        self.life().filter(|life| !life.refused && !matches!(life.stage, Stage::Failed(_) | Stage::Leaving))
    }

    /// Whether it is, or may become, able.
    pub fn is_hopeful(&self) -> bool {
        match &self.place {
            Place::Empty { .. } | Place::Starting { .. } => true,
            Place::Live(life) => !life.refused,
            Place::Ending { next, .. } => *next,
            Place::Out => false,
        }
    }

    /// Whether a process of it may still run.
    pub fn has_process(&self) -> bool {
        matches!(self.place, Place::Starting { .. } | Place::Live(_) | Place::Ending { .. })
    }
}

impl Life {
    /// Since when nothing is heard of it: its last word, or the end of its link.
    pub fn silent_since(&self) -> Instant {
        self.cut.unwrap_or(self.heard)
    }
}

impl NodeView {
    pub fn new(now: Instant, report: &NodeReport) -> Self {
        Self {
            boot: report.boot,
            report: Number(0),
            number: Number(0),
            echoed: Number(0),
            heard: now,
            host: report.host.clone(),
            ranks: report.ranks,
            leaving: false,
            released: false,
            kept_from: None,
            dismissed: false,
            away: false,
        }
    }
}

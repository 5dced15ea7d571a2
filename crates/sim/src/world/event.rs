//! What happens in the world.

use crate::Life;
use crate::world::{News, Parcel, ShardJob};
use dtrain_protocol::{
    BootId, Directive, Ending, ExitCause, Heartbeat, Input, ManifestOrder, NodeOrder, StepRecord, Validation,
};
use dtrain_types::{Generation, MemberId, NodeId};

/// Something that happens.
pub(super) enum Event {
    /// The supervisor is told something.
    Told(Input),
    /// The oldest entry of the supervisor's journal is on the disk.
    Written,
    /// A supervisor begins in the place of one that died.
    SupervisorBegins,
    /// One that was replaced, and is not dead, goes on.
    Ghost,
    ManifestWritten(Box<ManifestOrder>),
    ManifestTold(Box<ManifestOrder>, Result<(), String>),
    SupervisorTimer,
    Order(Box<NodeOrder>),
    NodeTimer(NodeId, BootId),
    Ended(NodeId, BootId, Life, ExitCause),
    Started(NodeId, BootId, Life),
    Killed(Life),
    Boots(NodeId),
    Directive(Box<Directive>),
    BeatDown(Heartbeat),
    MemberTimer(Life),
    News(Life, News),
    Worked(Life, u64),
    HostMet(Life),
    ShardWritten(Life, Box<ShardJob>),
    ShardSynced(Life, Box<ShardJob>),
    Frame {
        to: Life,
        parcel: Box<Parcel>,
    },
    PeerLost(Life, Generation, MemberId),
    Expires {
        from: MemberId,
        to: MemberId,
        generation: Generation,
    },
    Fault(usize),
    Heal(usize),
    /// A supervisor has stood still for so long that hosts hold their links to it to be dead.
    LinksDie(usize),
    Wake(Asleep),
}

/// Something that the supervisor is to write down.
pub(super) enum Entry {
    /// Who computes what in a generation.
    Ranges(Generation),
    /// A step.
    Step(StepRecord),
    /// A validation.
    Validation(Validation),
    /// What the run ended with.
    Ending(Ending),
}

/// Something that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asleep {
    Rank(Life),
    Compute(Life),
    Host(NodeId),
    Supervisor,
}

/// Whether an event dies with the supervisor's process: what happens inside it, and every word on a link that ends there.
pub(super) fn is_of_supervisor(event: &Event) -> bool {
    matches!(
        event,
        Event::Told(_)
            | Event::Written
            | Event::ManifestWritten(_)
            | Event::ManifestTold(..)
            | Event::SupervisorTimer
            | Event::LinksDie(_)
            | Event::Wake(Asleep::Supervisor)
    )
}

/// A second copy of a control word.
pub(super) fn copy_of(event: &Event) -> Option<Event> {
    Some(match event {
        Event::Told(input) => Event::Told(input.clone()),
        Event::Directive(directive) => Event::Directive(directive.clone()),
        Event::BeatDown(beat) => Event::BeatDown(*beat),
        Event::Order(order) => Event::Order(order.clone()),
        _ => return None,
    })
}

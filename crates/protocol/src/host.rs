//! The words between the supervisor and the node of a host: which lives there are to be, and which there are.
//!
//! Whole views like those between supervisor and member: an order says everything that the node is to have, a report
//! everything that it has. This file does not know processes, only that a life begins once and ends once.

use crate::cause::ExitCause;
use crate::number::{BootId, Number};
use dtrain_types::{Generation, Incarnation, Instance, MemberId, NodeId};
use serde::{Deserialize, Serialize};

/// What a node is to have. Supervisor to node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOrder {
    /// The supervisor's life.
    pub instance: Instance,
    /// The newest generation. Every life of a supervisor begins above those of the lives before it.
    pub generation: Generation,
    /// To whom.
    pub node: NodeId,
    /// The life of the node that is meant.
    pub boot: BootId,
    /// The order of the orders to this node; an older one is ignored.
    pub number: Number,
    /// Every member of this node. A life in a slot that is not named is to end.
    pub members: Vec<LifeOrder>,
    /// The run is over for this node: it ends once its processes have.
    pub leave: bool,
}

/// What one slot of a node is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeOrder {
    /// The slot.
    pub member: MemberId,
    /// The newest life that was issued; 0 is none yet. Every older one is to end.
    pub incarnation: Incarnation,
    /// Whether that life is to be; if not, it is to end by force.
    pub alive: bool,
}

/// What a node has. Node to supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The supervisor it obeys; none until the first order.
    pub instance: Option<Instance>,
    /// The newest generation that an order told of.
    pub generation: Generation,
    /// The node.
    pub node: NodeId,
    /// Its life, drawn at random when it started.
    pub boot: BootId,
    /// The order of this node's reports; an older one is ignored.
    pub number: Number,
    /// The last order that it took in.
    pub seen: Number,
    /// The name of its host.
    pub host: String,
    /// How many ranks it offers.
    pub ranks: u32,
    /// The newest life of every slot that ever had one, by member.
    pub lives: Vec<LifeReport>,
    /// It was asked to leave the run: its members are to be let go at the next step boundary.
    pub leaving: bool,
}

/// The newest life in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeReport {
    /// The slot.
    pub member: MemberId,
    /// The life.
    pub incarnation: Incarnation,
    /// How it ended; none while it goes on.
    pub ended: Option<ExitCause>,
}

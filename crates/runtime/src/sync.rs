//! The parameter-sync actor: builds, aborts and drops the data plane of a rank.
//!
//! The collectives themselves run on the compute thread, because a hop between threads costs more than a small
//! all-reduce; this actor owns what must work while that thread is blocked inside one. It does not know the
//! protocol: the rank actor tells it when.

use crate::compute::Order;
use crate::news::{News, NewsDesk};
use crate::recipe::Fabric;
use dtrain_collective::{Aborter, Geometry, Membership, Mode};
use dtrain_protocol::Failure;
use kameo::prelude::*;
use std::convert::Infallible;
use std::sync::mpsc::Sender;

/// Mailbox of the sync actor: one build and one abort per generation.
pub const SYNC_MAILBOX: usize = 16;

/// Owns the way to the peers.
pub struct Sync {
    /// Builds backends.
    pub fabric: Box<dyn Fabric>,
    /// The compute thread.
    pub orders: Sender<Order>,
    /// Where a failure is told.
    pub desk: NewsDesk,
    /// Length of a gradient buffer, and the numbers of micro-batches that a step can have.
    pub gradient: (usize, Vec<u32>),
    /// How gradients are summed.
    pub mode: Mode,
    /// Stops the backend of the generation in hand.
    pub aborter: Option<Aborter>,
}

/// Build the data plane of this membership and hand it to the compute thread.
pub struct Connect(pub Membership);

/// End every wait of the data plane in hand.
pub struct Abort(pub &'static str);

impl Actor for Sync {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(state: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(state)
    }
}

impl Message<Connect> for Sync {
    type Reply = ();

    async fn handle(&mut self, Connect(membership): Connect, _: &mut Context<Self, ()>) {
        let (len, counts) = &self.gradient;
        let geometry = Geometry::plan(*len, &membership.ranges, counts, self.mode);
        match self.fabric.connect(&membership, geometry, self.mode, counts) {
            Ok(backend) => {
                self.aborter = Some(backend.aborter());
                // The compute thread is gone only when the rank is ending.
                let _ = self.orders.send(Order::Build { backend, membership });
            }
            Err(error) => {
                let failure = Failure::Setup(format!("cannot reach the peers: {error}"));
                self.desk.tell_later(News::Failed(membership.generation, failure));
            }
        }
    }
}

impl Message<Abort> for Sync {
    type Reply = ();

    async fn handle(&mut self, Abort(reason): Abort, _: &mut Context<Self, ()>) {
        if let Some(aborter) = &self.aborter {
            aborter.abort(reason);
        }
    }
}

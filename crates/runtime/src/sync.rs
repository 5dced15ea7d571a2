//! The parameter-sync actor: builds, aborts and drops the data plane of a rank.
//!
//! The collectives themselves run on the compute thread, because a hop between threads costs more than a small
//! all-reduce; this actor owns what must work while that thread is blocked inside one. It does not know the
//! protocol: the rank actor tells it when.

use crate::compute::Order;
use crate::news::{News, NewsDesk};
use crate::recipe::{Fabric, FabricError, Plane};
use dtrain_collective::{Aborter, Geometry, Mode};
use dtrain_protocol::Failure;
use dtrain_types::Generation;
use kameo::prelude::*;
use std::convert::Infallible;
use std::sync::mpsc::Sender;

/// Mailbox of the sync actor: one build and one leave per generation.
pub const SYNC_MAILBOX: usize = 16;

/// Owns the way to the peers.
pub struct Sync {
    /// Builds backends; away while it does.
    pub fabric: Option<Box<dyn Fabric>>,
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

/// Build the data plane of this generation and hand it to the compute thread.
pub struct Connect(pub Plane);

/// Everything below this generation is over: end every wait of the data plane in hand, and tell the compute thread.
pub struct Leave(pub Generation);

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

    async fn handle(&mut self, Connect(plane): Connect, _: &mut Context<Self, ()>) {
        let Some(mut fabric) = self.fabric.take() else { return };
        let (len, counts) = (self.gradient.0, self.gradient.1.clone());
        let mode = self.mode;
        let generation = plane.membership.generation;
        let membership = plane.membership.clone();
        let writers = plane.members.writers().collect();
        // Reaching other hosts takes as long as it takes; the heartbeat of this rank must not wait for it.
        let built = tokio::task::spawn_blocking(move || {
            let geometry = Geometry::plan(len, &plane.membership.ranges, &counts, mode);
            let backend = fabric.connect(&plane, geometry, mode, &counts);
            (fabric, backend)
        });
        let Ok((fabric, backend)) = built.await else {
            let failure = Failure::Panic("while the data plane was built".into());
            return self.desk.tell_later(News::Failed(generation, failure));
        };
        self.fabric = Some(fabric);
        match backend {
            Ok(backend) => {
                self.aborter = Some(backend.aborter());
                // The compute thread is gone only when the rank is ending.
                let _ = self.orders.send(Order::Build { backend, membership, writers });
            }
            Err(FabricError { what, unreachable }) => {
                let why = format!("cannot reach the peers: {what}");
                self.desk.tell_later(News::Broken { generation, why, unreachable });
            }
        }
    }
}

impl Message<Leave> for Sync {
    type Reply = ();

    async fn handle(&mut self, Leave(generation): Leave, _: &mut Context<Self, ()>) {
        if let Some(aborter) = self.aborter.take() {
            aborter.abort("a new generation is formed");
        }
        // Behind every order of the generation that is left.
        let _ = self.orders.send(Order::Leave { generation });
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

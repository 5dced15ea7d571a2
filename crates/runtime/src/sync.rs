//! The parameter-sync actor: builds, aborts and drops the data plane of a rank.
//!
//! The collectives themselves run on the compute thread, because a hop between threads costs more than a small
//! all-reduce; this actor owns what must work while that thread is blocked inside one. It does not know the
//! protocol: the rank actor tells it when.

use crate::compute::Order;
use crate::news::{News, NewsSender};
use crate::recipe::{Fabric, FabricError, Plane};
use dtrain_collective::{Aborter, Geometry, Reduce};
use dtrain_protocol::{Bootstrap, Failure};
use dtrain_types::{Generation, Rank, Wire};
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
    pub news: NewsSender,
    /// Length of a gradient buffer, and the numbers of micro-batches that a step can have.
    pub gradient: (usize, Vec<u32>),
    /// How gradients are summed.
    pub mode: Reduce,
    /// What every node of the sum is rounded to.
    pub wire: Wire,
    /// Stops the backend of the generation in hand.
    pub aborter: Option<Aborter>,
}

/// Build the data plane of this generation and hand it to the compute thread.
pub struct Connect(pub Plane);

/// Everything below this generation is over: end every wait of the data plane in hand, and tell the compute thread.
pub struct Leave {
    /// The generation that is being formed.
    pub generation: Generation,
    /// The rank in it: the first one makes what all need to meet.
    pub rank: Rank,
}

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
        let generation = plane.membership.generation;
        let Some(mut fabric) = self.fabric.take() else {
            let failure = Failure::Panic("while a data plane was prepared".into());
            return self.news.tell_later(News::Failed(generation, failure));
        };
        let (len, counts) = (self.gradient.0, self.gradient.1.clone());
        let (mode, wire) = (self.mode, self.wire);
        let membership = plane.membership.clone();
        let writers = plane.members.writers().collect();
        let members = plane.members.clone();
        // Reaching other hosts takes as long as it takes; the heartbeat of this rank must not wait for it.
        let built = tokio::task::spawn_blocking(move || {
            let geometry = Geometry::plan(len, &plane.membership.ranges, &counts, mode);
            let backend = fabric.connect(&plane, geometry, mode, wire, &counts);
            (fabric, backend)
        });
        let Ok((fabric, backend)) = built.await else {
            let failure = Failure::Panic("while the data plane was built".into());
            return self.news.tell_later(News::Failed(generation, failure));
        };
        self.fabric = Some(fabric);
        match backend {
            Ok(backend) => {
                self.aborter = Some(backend.aborter());
                // The compute thread is gone only when the rank is ending.
                let _ = self.orders.send(Order::Build { backend, membership, writers, members });
            }
            Err(FabricError::Stuck(what)) => {
                self.news.tell_later(News::Failed(generation, Failure::Stuck(what)));
            }
            Err(FabricError::Unreached { what, unreachable }) => {
                let why = format!("cannot reach the peers: {what}");
                self.news.tell_later(News::Broken { generation, why, unreachable });
            }
        }
    }
}

impl Message<Leave> for Sync {
    type Reply = ();

    async fn handle(&mut self, Leave { generation, rank }: Leave, _: &mut Context<Self, ()>) {
        // Before anything else: the compute thread may be waiting inside a collective.
        if let Some(aborter) = self.aborter.take() {
            aborter.abort("a new generation is formed");
        }
        let bootstrap = if rank == Rank(0) { self.bootstrap().await } else { None };
        // Behind every order of the generation that is left.
        let _ = self.orders.send(Order::Leave { generation, bootstrap });
    }
}

impl Sync {
    /// Has the fabric make what a generation needs to meet. A library may open sockets for it, so not on this thread.
    async fn bootstrap(&mut self) -> Option<Bootstrap> {
        let mut fabric = self.fabric.take()?;
        let made = tokio::task::spawn_blocking(move || {
            let bootstrap = fabric.bootstrap();
            (fabric, bootstrap)
        });
        // After a panic there is no fabric: the order to build tells of it.
        let (fabric, bootstrap) = made.await.ok()?;
        self.fabric = Some(fabric);
        bootstrap
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

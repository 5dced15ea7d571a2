//! A thread that carries windows between the ranks while passes compute: one after the other, in the order in which it was told to.
//!
//! All ranks tell theirs the same, so that its collectives come in the same order on all. What a pass needs next, or has done with, is under way
//! while it computes: a backend makes no progress between the start of a collective and its end, and here somebody waits for each.
//! While it is out the carrier has the backend. This file does not know what a pass is.

use crate::broke::{Broke, off};
use crate::exchange::Wires;
use crate::lendable::Lendable;
use dtrain_collective::{Backend, Sequence};
use dtrain_rounds::{Carriage, Carries, Exchange, Outing, Parcel, ParcelKind, Round, Rounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a carrier takes along, and brings home.
struct Load {
    /// What it carries by.
    backend: Box<dyn Backend>,
    /// The newest collective.
    sequence: Sequence,
    carriage: Carriage,
}

enum Order {
    SetOut(Load),
    Bring(Parcel),
    Exchange(Parcel, Round),
    ComeHome,
}

/// The carrier of a rank in a generation.
struct Carrier {
    orders: Option<SyncSender<Order>>,
    brought: Receiver<Parcel>,
    exchanged: Receiver<Parcel>,
    home: Receiver<Load>,
    broke_off: Arc<AtomicBool>,
    /// How long others were waited for since it set out.
    waited: Duration,
    thread: Option<JoinHandle<()>>,
}

/// Why somebody answers.
const LIVES: &str = "the carrier lives until its orders end, unless it has panicked";

impl Carrier {
    /// Starts it, for so many windows under way at once; it sleeps until it sets out.
    fn start(at_once: usize) -> Self {
        // Beside all parcels two orders may wait, those to set out and to come home: nobody ever waits for room.
        let (orders, queue) = sync_channel(at_once + 2);
        let (to_brought, brought) = sync_channel(at_once);
        let (to_exchanged, exchanged) = sync_channel(at_once);
        let (to_home, home) = sync_channel(1);
        let broke_off = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&broke_off);
        let carry = move || serve(&queue, [&to_brought, &to_exchanged], &to_home, &told);
        let thread = std::thread::Builder::new().name("windows".into()).spawn(carry);
        let thread = thread.expect("a process that could start its compute thread can start one more");
        Self {
            orders: Some(orders),
            brought,
            exchanged,
            home,
            broke_off,
            waited: Duration::ZERO,
            thread: Some(thread),
        }
    }

    fn set_out(&mut self, load: Load) {
        self.broke_off.store(false, Ordering::Relaxed);
        self.waited = Duration::ZERO;
        self.order(Order::SetOut(load));
    }

    /// Its load, when all is carried that it was told to carry; nothing if it has panicked. *Blocks* until then.
    fn come_home(&mut self) -> Option<Load> {
        let begun = Instant::now();
        self.order(Order::ComeHome);
        let load = self.home.recv().ok();
        self.waited += begun.elapsed();
        load
    }

    /// What came back and nobody has taken.
    fn unclaimed(&self) -> impl Iterator<Item = (ParcelKind, Parcel)> {
        let brought = self.brought.try_iter().map(|parcel| (ParcelKind::Parameters, parcel));
        brought.chain(self.exchanged.try_iter().map(|parcel| (ParcelKind::Gradient, parcel)))
    }

    fn order(&self, order: Order) {
        // Whoever waits for what comes of it hears that there is nobody.
        let _ = self.orders.as_ref().expect("orders end when it is dropped").send(order);
    }
}

impl Carries for Carrier {
    fn bring(&mut self, parcel: Parcel) {
        self.order(Order::Bring(parcel));
    }

    fn brought(&mut self) -> Parcel {
        timed(&self.brought, &mut self.waited)
    }

    fn exchange(&mut self, parcel: Parcel, round: Round) {
        self.order(Order::Exchange(parcel, round));
    }

    fn exchanged(&mut self) -> Parcel {
        timed(&self.exchanged, &mut self.waited)
    }
}

fn timed(of: &Receiver<Parcel>, waited: &mut Duration) -> Parcel {
    let begun = Instant::now();
    let parcel = of.recv().expect(LIVES);
    *waited += begun.elapsed();
    parcel
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _panicked = thread.join();
        }
    }
}

/// What the thread does.
fn serve(
    orders: &Receiver<Order>,
    [brought, exchanged]: [&SyncSender<Parcel>; 2],
    home: &SyncSender<Load>,
    broke_off: &AtomicBool,
) {
    let mut load = None;
    // Nobody takes what comes back when the generation ends: then there are no more orders either.
    for order in orders {
        match order {
            Order::SetOut(given) => load = Some(given),
            Order::Bring(mut parcel) => {
                carry(load.as_mut(), broke_off, |carriage, by| carriage.bring(&mut parcel, by));
                let _ = brought.send(parcel);
            }
            Order::Exchange(parcel, round) => {
                carry(load.as_mut(), broke_off, |carriage, by| carriage.exchange(&parcel, round, by));
                let _ = exchanged.send(parcel);
            }
            Order::ComeHome => {
                if let Some(load) = load.take() {
                    let _ = home.send(load);
                }
            }
        }
    }
}

/// Does something with the load.
fn carry(
    load: Option<&mut Load>,
    broke_off: &AtomicBool,
    work: impl FnOnce(&mut Carriage, &mut dyn Exchange),
) {
    let Load { backend, sequence, carriage } = load.expect("windows are carried after it has set out");
    work(carriage, &mut Wires { backend: backend.as_mut(), sequence });
    broke_off.store(carriage.broke_off(), Ordering::Relaxed);
}

/// The rounds of a generation, and who carries their windows.
pub struct CarriedRounds {
    /// They.
    pub rounds: Rounds,
    carrier: Carrier,
}

impl CarriedRounds {
    /// With a carrier of their own.
    pub fn new(rounds: Rounds) -> Self {
        Self { carrier: Carrier::start(rounds.at_once()), rounds }
    }

    /// Sends the carrier out with the backend and the newest collective.
    pub fn set_out<'a>(&'a mut self, backend: &'a mut Lendable, sequence: &'a mut Sequence) -> Out<'a> {
        let Self { rounds, carrier } = self;
        let carriage = rounds.set_out();
        carrier.set_out(Load { backend: backend.lend(), sequence: *sequence, carriage });
        Out { rounds, carrier, backend, sequence, is_out: true }
    }
}

/// A carrier that is out, with the backend and what it adds to. It comes home at the end, whatever that is.
pub struct Out<'a> {
    rounds: &'a mut Rounds,
    carrier: &'a mut Carrier,
    backend: &'a mut Lendable,
    sequence: &'a mut Sequence,
    is_out: bool,
}

impl Out<'_> {
    /// The rounds that it is for.
    pub fn rounds(&self) -> &Rounds {
        self.rounds
    }

    /// A pass meanwhile.
    pub fn pass(&mut self) -> Outing<'_> {
        self.rounds.outing(self.carrier)
    }

    /// Whether the collectives broke off: what is computed from then on is of no use.
    pub fn broke_off(&self) -> bool {
        self.carrier.broke_off.load(Ordering::Relaxed)
    }

    /// Waits for what is under way; tells how long others were waited for in all. *Blocks* for all ranks. *Errors*: the collectives broke off.
    pub fn finish(mut self) -> Result<Duration, Broke> {
        self.come_home()?;
        Ok(self.carrier.waited)
    }

    fn come_home(&mut self) -> Result<(), Broke> {
        self.is_out = false;
        let load = self.carrier.come_home().expect("the carrier has not panicked");
        self.backend.take_back(load.backend);
        *self.sequence = load.sequence;
        self.rounds.come_home(load.carriage, self.carrier.unclaimed()).map_err(off)
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        if self.is_out && !std::thread::panicking() {
            // Whoever dropped it has a reason of its own, and tells that.
            let _went = self.come_home();
        }
    }
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;

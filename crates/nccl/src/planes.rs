//! One backend after another, for one generation after another: what outlives a generation is handed on to the next.
//!
//! A rank keeps its device and its slots for as long as it lives; a communicator lasts for one generation. A [`NcclPlane`]
//! begins to meet its peers when it is made and waits for them in its first collective, so that whoever aborts it is heard
//! from the first moment. When it is dropped, its communicator is ended and device and slots go back to [`Planes`].
//!
//! If the library does not come back from the end of a communicator, nothing more is made here: every later
//! [`Planes::connect`] says so. This file does not know where the unique id came from, nor when a generation is left.

use crate::communicator::Forming;
use crate::device::{Device, DeviceError};
use crate::{BackendParts, CommunicatorAborter, NcclBackend, NcclError, NcclLibrary, NcclSetup, UniqueId};
use dtrain_collective::{
    Abort, Aborter, Arena, Assignment, Backend, CollectiveError, DeviceSlot, Geometry, Narrow, Op, Reduce,
    Sequence,
};
use dtrain_types::Trailer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a plane waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For all peers to come. An abort ends it sooner.
    pub meeting: Duration,
    /// For the library, at the end of a communicator.
    pub end: Duration,
}

/// Makes the planes of one rank.
pub struct Planes<D: Device> {
    library: NcclLibrary,
    patience: Patience,
    kept: Arc<Mutex<Kept<D>>>,
}

/// What is left of the plane before.
enum Kept<D: Device> {
    Nothing,
    Parts(D, D::Arena),
    /// The library never came back.
    Stuck(NcclError),
}

impl<D: Device> Kept<D> {
    /// What is there, taken out; a library that is stuck stays so.
    fn take(&mut self) -> Result<Option<(D, D::Arena)>, NcclError> {
        match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Ok(None),
            Self::Parts(device, arena) => Ok(Some((device, arena))),
            Self::Stuck(error) => {
                *self = Self::Stuck(error.clone());
                Err(error)
            }
        }
    }
}

fn locked<D: Device>(kept: &Mutex<Kept<D>>) -> MutexGuard<'_, Kept<D>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Device> Planes<D> {
    /// For a rank that has made none.
    #[must_use]
    pub fn new(library: NcclLibrary, patience: Patience) -> Self {
        Self { library, patience, kept: Arc::new(Mutex::new(Kept::Nothing)) }
    }

    /// The same, for a rank that has its device and its slots already.
    #[must_use]
    pub fn with(self, device: D, arena: D::Arena) -> Self {
        *locked(&self.kept) = Kept::Parts(device, arena);
        self
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &NcclLibrary {
        &self.library
    }

    /// Begins to meet the peers of a generation. Device and slots are those of the plane before, if their slots have this
    /// `geometry`; else `make` makes them.
    ///
    /// *Errors*: [`NcclError::Stuck`] once the library did not come back from the end of an earlier communicator, and from
    /// then on; whatever else the library or the device says.
    pub fn connect(
        &mut self,
        id: &UniqueId,
        setup: NcclSetup<'_>,
        geometry: Geometry,
        make: impl FnOnce(Geometry) -> Result<(D, D::Arena), DeviceError>,
    ) -> Result<NcclPlane<D>, NcclError> {
        let kept = locked(&self.kept).take()?.filter(|(_, arena)| arena.geometry() == geometry);
        let (device, arena) = match kept {
            Some(parts) => parts,
            None => make(geometry).map_err(|DeviceError(what)| NcclError::Device { what })?,
        };
        let NcclSetup { membership, mode, counts, cuts } = setup;
        let entered = device.enter().map_err(|DeviceError(what)| NcclError::Device { what });
        let begin = |()| Forming::begin(&self.library, id, membership.rank, membership.world());
        let forming = match entered.and_then(begin) {
            Ok(forming) => forming,
            Err(error) => {
                *locked(&self.kept) = Kept::Parts(device, arena);
                return Err(error);
            }
        };
        let (generation, rank, world) = (membership.generation.0, membership.rank.0, membership.world().0);
        let (version, path) = (self.library.version(), self.library.path().display());
        tracing::debug!(target: LOG, generation, rank, world, %version, %path, "a communicator is being made");
        Ok(NcclPlane {
            aborter: forming.aborter(),
            generation,
            rank,
            state: State::Meeting(Box::new(Meeting {
                forming,
                device,
                arena,
                membership,
                mode,
                counts: counts.to_vec(),
                cuts: cuts.to_vec(),
            })),
            patience: self.patience,
            kept: Arc::clone(&self.kept),
        })
    }
}

/// The name under which the log tells of communicators: `--log nccl=debug` shows it.
pub const LOG: &str = "nccl";

/// The backend of one generation.
pub struct NcclPlane<D: Device> {
    /// Ends the communicator in whatever state it is.
    aborter: CommunicatorAborter,
    generation: u64,
    rank: u32,
    state: State<D>,
    patience: Patience,
    kept: Arc<Mutex<Kept<D>>>,
}

enum State<D: Device> {
    Meeting(Box<Meeting<D>>),
    Met(Box<NcclBackend<D>>),
    /// The peers were not met; device and slots went back.
    Failed(CollectiveError),
}

/// What a plane holds while its peers come.
struct Meeting<D: Device> {
    forming: Forming,
    device: D,
    arena: D::Arena,
    membership: Assignment,
    mode: Reduce,
    counts: Vec<u32>,
    cuts: Vec<usize>,
}

/// Stops a plane, whether its peers are all there or not.
struct PlaneAbort {
    communicator: CommunicatorAborter,
    generation: u64,
    rank: u32,
}

impl Abort for PlaneAbort {
    fn abort(&self, reason: &str) {
        let (generation, rank) = (self.generation, self.rank);
        tracing::debug!(target: LOG, generation, rank, reason, "a communicator is aborted");
        self.communicator.abort(reason);
    }
}

impl<D: Device> NcclPlane<D> {
    /// The backend, once all peers are there. *Blocks* for them.
    fn met(&mut self) -> Result<&mut NcclBackend<D>, CollectiveError> {
        if let State::Meeting(_) = &self.state {
            let placeholder = State::Failed(CollectiveError::Aborted { reason: "a panic".to_owned() });
            let State::Meeting(meeting) = std::mem::replace(&mut self.state, placeholder) else {
                unreachable!("it was looked at")
            };
            self.state = self.meet(*meeting).map_or_else(State::Failed, |met| State::Met(Box::new(met)));
        }
        match &mut self.state {
            State::Met(backend) => Ok(backend),
            State::Failed(error) => Err(error.clone()),
            State::Meeting(_) => unreachable!("it has ended"),
        }
    }

    fn meet(&self, meeting: Meeting<D>) -> Result<NcclBackend<D>, CollectiveError> {
        let Meeting { forming, device, arena, membership, mode, counts, cuts } = meeting;
        let (generation, rank) = (self.generation, self.rank);
        let communicator = match forming.wait(self.patience.meeting) {
            Ok(communicator) => communicator,
            Err(error) => {
                tracing::debug!(target: LOG, generation, rank, %error, "a communicator was not made");
                self.keep(device, arena);
                return Err(error.into());
            }
        };
        let library = communicator.library();
        let (version, path, world) = (library.version(), library.path().display(), communicator.world());
        tracing::debug!(target: LOG, generation, rank, world, %version, %path, "a communicator is made");
        NcclBackend::new(
            device,
            arena,
            communicator,
            NcclSetup { membership, mode, counts: &counts, cuts: &cuts },
        )
    }

    /// Hands device and slots on, unless the library still works at the end of the communicator.
    fn keep(&self, device: D, arena: D::Arena) {
        *locked(&self.kept) = match self.aborter.wait(Duration::ZERO) {
            Ok(()) => Kept::Parts(device, arena),
            Err(_) => Kept::Stuck(NcclError::Stuck { within: self.patience.end }),
        };
    }

    /// Ends the communicator: in order where nothing has failed, by an abort where something has.
    fn end(&self, backend: NcclBackend<D>) {
        if std::thread::panicking() {
            // It may be in the middle of a collective.
            self.aborter.abort("this rank panicked");
        }
        let (generation, rank, within) = (self.generation, self.rank, self.patience.end);
        let BackendParts { device, arena, communicator } = match backend.dissolve(within) {
            Ok(parts) => parts,
            Err(error) => {
                tracing::warn!(target: LOG, generation, rank, %error, "the library is stuck");
                *locked(&self.kept) = Kept::Stuck(error);
                return;
            }
        };
        // The last bytes of this rank may be on their way to peers: an abort could take them back.
        let ended = communicator.map(|communicator| communicator.finalize(within));
        let how = match &ended {
            Some(Ok(())) => "in order",
            Some(Err(_)) | None => "by an abort",
        };
        tracing::debug!(target: LOG, generation, rank, how, "a communicator is dissolved");
        self.keep(device, arena);
    }
}

impl<D: Device> Backend for NcclPlane<D> {
    fn prepare(&mut self, counts: &[u32]) {
        match &mut self.state {
            State::Met(backend) => backend.prepare(counts),
            State::Meeting(meeting) => meeting.counts.extend_from_slice(counts),
            State::Failed(_) => {}
        }
    }

    fn arena(&mut self) -> &mut dyn Arena {
        match &mut self.state {
            State::Met(backend) => backend.arena(),
            State::Meeting(meeting) => &mut meeting.arena,
            State::Failed(error) => panic!("the backend is dead: {error}"),
        }
    }

    /// *Blocks* until its peers have come. None of one that is dead.
    fn device_slot(&mut self) -> Option<&mut dyn DeviceSlot> {
        self.met().ok().and_then(Backend::device_slot)
    }

    fn takes_offers(&self) -> bool {
        matches!(&self.state, State::Met(backend) if backend.takes_offers())
    }

    fn narrow(&mut self, narrow: &Narrow) {
        if let State::Met(backend) = &mut self.state {
            backend.narrow(narrow);
        }
    }

    fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        if let State::Met(backend) = &mut self.state {
            backend.offer(seq, micro_batches, from);
        }
    }

    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.met()?.start(seq, op)
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.met()?.finish(seq)
    }

    fn aborter(&self) -> Aborter {
        let (communicator, generation, rank) = (self.aborter.clone(), self.generation, self.rank);
        Aborter::new(Arc::new(PlaneAbort { communicator, generation, rank }))
    }

    fn describe(&self) -> String {
        match &self.state {
            State::Met(backend) => backend.describe(),
            State::Meeting(_) => "NCCL, waiting for its peers".to_owned(),
            State::Failed(error) => format!("NCCL, dead: {error}"),
        }
    }
}

impl<D: Device> Drop for NcclPlane<D> {
    fn drop(&mut self) {
        let ended = State::Failed(CollectiveError::Aborted { reason: "it was dropped".to_owned() });
        match std::mem::replace(&mut self.state, ended) {
            State::Met(backend) => self.end(*backend),
            State::Meeting(meeting) => {
                let Meeting { forming, device, arena, .. } = *meeting;
                // It aborts, and waits for that for a while.
                drop(forming);
                self.keep(device, arena);
            }
            State::Failed(_) => {}
        }
    }
}

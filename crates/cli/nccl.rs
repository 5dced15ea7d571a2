//! What carries the gradients: whether it is NCCL, which library that is, and a rank's way to its peers over it.
//!
//! The library is found where `dtrain doctor` finds it. It moves the memory of GPUs: ranks that train there compute their gradients
//! in slots on their GPU, from which it takes them. For ranks of a CPU it is refused before anything is written.

use crate::config::{Backend as Wish, Config, CudaList, HostCount, Offload, Problem};
use crate::external::is_external;
use crate::gpus::{Asking, Judged, TestVerdict, of_nccl, oldest};
use dtrain_collective::{Backend, Geometry, Reduce};
use dtrain_cuda::collectives::{GpuSlots, NcclDevice};
use dtrain_cuda::driver::Stream;
use dtrain_locate::{Environment, Finder, Library as Wanted};
use dtrain_nccl::{
    DeviceError, LOG, NcclError, NcclLibrary, NcclSetup, Patience, Planes, UniqueId, must_not_block, open,
};
use dtrain_protocol::Bootstrap;
use dtrain_runtime::{Fabric, FabricError, Plane, Program};
use dtrain_types::Wire;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// By this variable the library is told how much to say.
const NCCL_DEBUG: &str = "NCCL_DEBUG";
/// By this variable it is told to take several ranks on one GPU (2.30.3 and later).
const MULTI_RANK: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// What carries the gradients of a run.
#[derive(Clone, Debug)]
pub enum ChosenBackend {
    /// Shared memory, and encrypted links between hosts.
    Host,
    /// This library.
    Nccl(NcclLibrary),
}

impl ChosenBackend {
    /// What a configuration asks for, on this host, whose ranks train on these GPUs or on the CPU. Writes nothing but a verdict. What
    /// `auto` comes to is told with why.
    ///
    /// *Errors*: no library, one that is too old, one that cannot serve ranks on the CPU or several on one GPU, or hosts between
    /// which nothing may be plain. *Blocks* while a library starts and, where `auto` meets GPUs that were not tested before, for the test.
    pub fn choose(
        config: &Config,
        hosts: HostCount,
        gpus: Option<&CudaList>,
    ) -> Result<(Self, Option<String>), Problem> {
        // Where its state lies was said before.
        let from_host = is_external(config) && config.offload != Offload::Nothing;
        match config.backend {
            Wish::Auto if from_host => Ok((Self::Host, None)),
            Wish::Nccl if from_host => {
                let words =
                    "gradients of a Python program whose state is in the host's memory go through the host";
                Err(config.problem("backend", words).hint("leave it out, or write backend=host"))
            }
            Wish::Host => Ok((Self::Host, None)),
            Wish::Nccl => Ok((Self::asked_for(config, hosts, gpus)?, None)),
            Wish::Auto => Ok(Self::by_test(config, hosts, gpus)),
        }
    }

    /// NCCL, where each of several ranks of one host has a GPU of its own, and a test of it has passed.
    fn by_test(config: &Config, hosts: HostCount, gpus: Option<&CudaList>) -> (Self, Option<String>) {
        let host = |why: String| Self::through_the_host(&why);
        let Some(list) = gpus.filter(|_| config.world.ranks > 1) else {
            return (Self::Host, None);
        };
        if gpus_of(list, config.world.ranks) < config.world.ranks {
            return host("several ranks share a GPU".to_owned());
        }
        if hosts == HostCount::Several || config.reduce == Reduce::Ring || config.wire != Wire::F32 {
            return host("NCCL has to be asked for there".to_owned());
        }
        if let Err(error) = must_not_block() {
            return host(first_line(&error));
        }
        let library = match find() {
            Ok(library) => library,
            Err((words, _)) => return host(words),
        };
        let Judged { verdict, kept } = of_nccl(&library, list, Asking::Tests);
        let at = format!("NCCL {} at {}", library.version(), library.path().display());
        match (verdict, kept) {
            (TestVerdict::Passed, Ok(_)) => {
                let why = format!("backend auto: {at}, whose test on these GPUs has passed");
                (Self::Nccl(library), Some(why))
            }
            (TestVerdict::Passed, Err(why)) => {
                let why = format!("backend auto: {at}, whose test has passed; that is not kept: {why}");
                (Self::Nccl(library), Some(why))
            }
            (TestVerdict::Failed(words), _) => host(format!("the test of {at} has failed: {words}")),
            (TestVerdict::Unknown(words), _) => host(format!("{at} cannot be tested: {words}")),
        }
    }

    fn through_the_host(why: &str) -> (Self, Option<String>) {
        (Self::Host, Some(format!("backend auto: gradients go through the host: {why}")))
    }

    /// What `auto` comes to where NCCL could carry windows and the GPUs have no room for that.
    #[must_use]
    pub fn of_windows_without_room() -> (Self, Option<String>) {
        Self::through_the_host("the GPUs have no room for windows that travel between them")
    }

    /// As the key `backend` says it.
    #[must_use]
    pub fn kind(&self) -> Wish {
        match self {
            Self::Host => Wish::Host,
            Self::Nccl(_) => Wish::Nccl,
        }
    }

    fn asked_for(config: &Config, hosts: HostCount, gpus: Option<&CudaList>) -> Result<Self, Problem> {
        let problem = |(message, hint): (String, &str)| config.problem("backend", message).hint(hint);
        if hosts == HostCount::Several && !config.world.trusted_network {
            let message =
                "NCCL's own traffic between hosts is neither encrypted nor authenticated".to_owned();
            let hint =
                "where nobody else is on the network, write trusted_network=true; backend=host encrypts";
            return Err(problem((message, hint)));
        }
        must_not_block().map_err(|error| problem((first_line(&error), "unset it")))?;
        let library = find().map_err(problem)?;
        let ranks = config.world.ranks;
        match gpus.map(|list| gpus_of(list, ranks)) {
            None => {
                let message = format!(
                    "NCCL {} at {} moves the memory of GPUs, and this host trains on its CPU",
                    library.version(),
                    library.path().display()
                );
                let hint = "devices=all trains on GPUs; on the CPU leave it out, or write backend=host";
                Err(problem((message, hint)))
            }
            Some(gpus) if gpus < ranks && std::env::var_os(MULTI_RANK).is_none_or(|value| value != "1") => {
                let message = format!("NCCL takes one rank on a GPU, and there are {ranks} for {gpus}");
                Err(config
                    .problem("backend", message)
                    .hint(format!("write ranks={gpus}, or backend=host, which takes several")))
            }
            _ => Ok(Self::Nccl(library)),
        }
    }

    /// The program of a rank process. Where the log shows NCCL's part, the library is asked for its own words too, unless
    /// the user has told it what to say.
    #[must_use]
    pub fn program(&self) -> Program {
        let asked = tracing::enabled!(target: LOG, tracing::Level::DEBUG);
        match self {
            Self::Nccl(_) if asked && std::env::var_os(NCCL_DEBUG).is_none() => {
                Program::this().with_variable(NCCL_DEBUG, "INFO")
            }
            Self::Nccl(_) | Self::Host => Program::this(),
        }
    }

    /// What people should know of it, a line each.
    #[must_use]
    pub fn notes(&self, hosts: HostCount) -> Vec<String> {
        let Self::Nccl(library) = self else { return Vec::new() };
        let (version, path) = (library.version(), library.path().display());
        let mut notes = vec![format!("gradients go over NCCL {version} at {path}")];
        if hosts == HostCount::Several {
            notes.push("what NCCL sends between hosts is plain, as trusted_network=true allows".to_owned());
        }
        notes
    }
}

/// How many GPUs so many ranks come to.
fn gpus_of(list: &CudaList, ranks: u32) -> u32 {
    (0..ranks).map(|place| list.of_rank(place, ranks)).collect::<BTreeSet<_>>().len() as u32
}

/// The library of this host, opened.
fn find() -> Result<NcclLibrary, (String, &'static str)> {
    let get = "`pip install nvidia-nccl-cu12`, or name its folder in DTRAIN_LIBRARY_PATH; `dtrain doctor` says more";
    let finding = Finder::new(Environment::here()).find(Wanted::Nccl, oldest(Wanted::Nccl).as_ref());
    let Some(found) = &finding.found else {
        return Err((format!("there is no NCCL to be used: {}", finding.sentence()), get));
    };
    open(std::slice::from_ref(&found.path)).map_err(|error| (first_line(&error), get))
}

/// What an error says, without its hint.
fn first_line(error: &NcclError) -> String {
    let text = error.to_string();
    text.split("\nhint:").next().unwrap_or(&text).replace('\n', " ")
}

/// Makes the device of a rank, with slots of this shape.
type Make = Box<dyn FnMut(Geometry) -> Result<(NcclDevice, GpuSlots), DeviceError> + Send>;

/// A rank's way to its peers over NCCL.
pub struct NcclFabric {
    planes: Planes<NcclDevice>,
    make: Make,
    /// The slots that were made: they grow with what a generation needs, and are never cut down.
    slots: Geometry,
    /// Where sums will be cut.
    cuts: Vec<usize>,
    /// Why the last bootstrap could not be made.
    refused: Option<NcclError>,
}

impl NcclFabric {
    /// For a rank whose replica works on this stream of a GPU, with these slots there.
    ///
    /// *Errors*: there is no room for them.
    pub fn new(
        library: NcclLibrary,
        detect: Duration,
        computes: &Arc<Stream>,
        slots: Geometry,
    ) -> Result<Self, DeviceError> {
        let computes = computes.clone();
        let make = move |slots| {
            // A stream of its own: what is reduced does not wait for what is computed behind it.
            let device = NcclDevice::new(computes.gpu())?;
            let slots = GpuSlots::new(device.communication(), slots)?.filled_on(&computes)?;
            Ok((device, slots))
        };
        let (device, arena) = make(slots)?;
        let planes = Planes::new(library, patience(detect)).with(device, arena);
        Ok(Self { planes, make: Box::new(make), slots, cuts: Vec::new(), refused: None })
    }

    /// The same, whose sums will be cut at these elements: there is room for a part of those of its peers.
    #[must_use]
    pub fn cut_at(self, cuts: Vec<usize>) -> Self {
        Self { cuts, ..self }
    }
}

/// A lost peer is found by the supervisor, which ends the meeting; this bound is for a library that hangs. The end of a
/// communicator lies within what forming a generation may take: ten times `detect`.
fn patience(detect: Duration) -> Patience {
    Patience { meeting: detect * 60, end: detect * 2 }
}

impl Fabric for NcclFabric {
    fn bootstrap(&mut self) -> Option<Bootstrap> {
        let made = self.planes.library().unique_id();
        self.refused = made.as_ref().err().cloned();
        made.ok().map(|id| Bootstrap(id.0))
    }

    fn connect(
        &mut self,
        plane: &Plane,
        geometry: Geometry,
        mode: Reduce,
        wire: Wire,
        counts: &[u32],
    ) -> Result<Box<dyn Backend>, FabricError> {
        assert_eq!(wire, Wire::F32, "the configuration was checked");
        let Some(Bootstrap(id)) = plane.bootstrap else {
            let why = self.refused.take().map_or("rank 0 made no id".to_owned(), |error| error.to_string());
            return Err(FabricError::from(why));
        };
        self.slots = Geometry {
            len: geometry.len,
            root_slots: self.slots.root_slots.max(geometry.root_slots),
            scratch_slots: self.slots.scratch_slots.max(geometry.scratch_slots),
        };
        let setup = NcclSetup { membership: plane.membership.clone(), mode, counts, cuts: &self.cuts };
        match self.planes.connect(&UniqueId(id), setup, self.slots, &mut self.make) {
            Ok(plane) => Ok(Box::new(plane)),
            // A device that has failed, or has no room for more slots, serves no other generation either.
            Err(error @ (NcclError::Stuck { .. } | NcclError::Device { .. })) => {
                Err(FabricError::Stuck(error.to_string()))
            }
            Err(error) => Err(FabricError::from(error.to_string())),
        }
    }
}

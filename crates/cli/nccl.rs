//! What carries the gradients: whether it is NCCL, which library that is, and a rank's way to its peers over it.
//!
//! The library is found where `dtrain doctor` finds it. Gradients lie in the memory of hosts, so the only library that serves them is
//! the one that tests open: it says by a name that its buffers are host memory. The real one is refused before anything is
//! written.

use crate::config::{Backend as Wish, Config, Problem};
use crate::gpus::least;
use dtrain_collective::{Backend, Geometry, Mode};
use dtrain_locate::{Environment, Finder, Library as Wanted};
use dtrain_nccl::{
    HostDevice, HostSlots, LOG, Library, NcclError, NcclSetup, Patience, Planes, UniqueId, must_not_block,
    open,
};
use dtrain_protocol::Bootstrap;
use dtrain_runtime::{Fabric, FabricError, Plane, Program};
use dtrain_types::Wire;
use std::time::Duration;

/// By this variable the library is told how much to say.
const NCCL_DEBUG: &str = "NCCL_DEBUG";

/// What carries the gradients of a run.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// Shared memory, and encrypted links between hosts.
    Host,
    /// This library.
    Nccl(Library),
}

/// Whether other hosts may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// There is this one alone.
    One,
    /// There may be others.
    Several,
}

impl Carrier {
    /// What a configuration asks for, on this host. Writes nothing.
    ///
    /// *Errors*: no library, one that is too old, one that cannot serve ranks on the CPU, or hosts between which nothing
    /// may be plain. *Blocks* while a library starts.
    pub fn choose(config: &Config, hosts: Hosts) -> Result<Self, Problem> {
        match config.backend {
            // As long as gradients lie in the memory of hosts, nothing is gained by a way through a GPU's library.
            Wish::Auto | Wish::Host => return Ok(Self::Host),
            Wish::Nccl => {}
        }
        let problem = |(message, hint): (String, &str)| config.problem("backend", message).hint(hint);
        if hosts == Hosts::Several && !config.world.trusted_network {
            let message =
                "NCCL's own traffic between hosts is neither encrypted nor authenticated".to_owned();
            let hint =
                "where nobody else is on the network, write trusted_network=true; backend=host encrypts";
            return Err(problem((message, hint)));
        }
        must_not_block().map_err(|error| problem((first_line(&error), "unset it")))?;
        let library = find().map_err(problem)?;
        if !library.takes_host_memory() {
            let message = format!(
                "NCCL {} at {} moves the memory of GPUs, and the gradients of this run lie in the memory of hosts",
                library.version(),
                library.path().display()
            );
            return Err(problem((message, "leave it out, or write backend=host")));
        }
        Ok(Self::Nccl(library))
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
    pub fn notes(&self, hosts: Hosts) -> Vec<String> {
        let Self::Nccl(library) = self else { return Vec::new() };
        let mut notes = vec![format!(
            "gradients go over NCCL {} at {}, a library of tests",
            library.version(),
            library.path().display()
        )];
        if hosts == Hosts::Several {
            notes.push("what NCCL sends between hosts is plain, as trusted_network=true allows".to_owned());
        }
        notes
    }
}

/// The library of this host, opened.
fn find() -> Result<Library, (String, &'static str)> {
    let get = "`pip install nvidia-nccl-cu12`, or name its folder in DTRAIN_LIBRARY_PATH; `dtrain doctor` says more";
    let finding = Finder::new(Environment::here()).find(Wanted::Nccl, least(Wanted::Nccl).as_ref());
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

/// A rank's way to its peers over NCCL.
pub struct NcclFabric {
    planes: Planes<HostDevice>,
    /// Why the last bootstrap could not be made.
    refused: Option<NcclError>,
}

impl NcclFabric {
    /// For a rank that has met nobody yet. `detect` is the one knob of the run's timeouts.
    #[must_use]
    pub fn new(library: Library, detect: Duration) -> Self {
        // A lost peer is found by the supervisor, which ends the meeting; this bound is for a library that hangs. The end
        // of a communicator lies within what forming a generation may take: ten times `detect`.
        let patience = Patience { meeting: detect * 60, end: detect * 2 };
        Self { planes: Planes::new(library, patience), refused: None }
    }
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
        mode: Mode,
        wire: Wire,
        counts: &[u32],
    ) -> Result<Box<dyn Backend>, FabricError> {
        assert_eq!(wire, Wire::F32, "the configuration was checked");
        let Some(Bootstrap(id)) = plane.bootstrap else {
            let why = self.refused.take().map_or("rank 0 made no id".to_owned(), |error| error.to_string());
            return Err(FabricError::from(why));
        };
        // Room for every cut: the next generation has another one, and takes the slots over.
        let most = counts.iter().copied().max().unwrap_or(1);
        let room = Geometry::bound(geometry.len, most, mode);
        let setup = NcclSetup { membership: plane.membership.clone(), mode, counts };
        let make = |room| Ok((HostDevice::new()?, HostSlots::new(room)));
        match self.planes.connect(&UniqueId(id), setup, room, make) {
            Ok(plane) => Ok(Box::new(plane)),
            Err(error @ NcclError::Stuck { .. }) => Err(FabricError::Stuck(error.to_string())),
            Err(error) => Err(FabricError::from(error.to_string())),
        }
    }
}

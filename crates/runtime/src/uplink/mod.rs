//! A host that is not the supervisor's: its link to the supervisor, and its node from the first word to the last.
//!
//! The node obeys the supervisor; these files only keep a way to it open (`caller.rs`), serve it (`host.rs`), and say what
//! becomes of a host whose supervisor is gone. A process that is gone answers (`probe.rs`): its host says that nobody listens at
//! that port any more; another one may take its place. A host that is cut off does not, and may come back. They do not know what a rank does.

mod caller;
mod host;
mod part;
mod probe;
mod successor;

pub use caller::{Callee, UplinkError};
pub(crate) use caller::{is_for_good, unspecified};
pub use part::{HostConfig, HostEnd, HostNews, Succession};

use caller::{Caller, HostLink};
use dtrain_protocol::{BootId, ClockOffset, RankSetup, Timeouts};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A host that was let in and has not begun.
pub struct Uplink {
    runtime: Runtime,
    caller: Caller,
    link: HostLink,
    /// What the supervisor said; another life of it says something else.
    setup: RankSetup,
}

impl Uplink {
    /// Calls the supervisor until it answers, for at most `patience`. Call it on the main thread: ranks die with the
    /// thread that starts them.
    ///
    /// *Blocks*. *Errors*: see [`UplinkError`].
    pub fn join(callee: Callee, boot: BootId, patience: Duration) -> Result<Self, UplinkError> {
        let system = |what, error: io::Error| UplinkError::System { what, error: error.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| system("start", error))?;
        let timeouts = Timeouts::derive(Duration::from_secs(1)).expect("a second is in range");
        let caller = Caller { callee, boot, timeouts };
        let (link, setup) = runtime.block_on(caller.call_until(patience))?;
        Ok(Self { runtime, caller, link, setup })
    }

    /// What the supervisor said.
    #[must_use]
    pub fn setup(&self) -> &RankSetup {
        &self.setup
    }

    /// The address of this host that the supervisor was reached from.
    ///
    /// *Errors*: of the system.
    pub fn own_address(&self) -> io::Result<IpAddr> {
        let master = self.link.connection.remote_addr();
        Ok(probe::ask_nobody(master, self.caller.callee.from)?.local_addr()?.ip())
    }

    /// How far the supervisor's time of day is ahead of that of this host; none where a clock was set meanwhile.
    #[must_use]
    pub fn clock(&self) -> Option<ClockOffset> {
        self.link.clock
    }

    /// Serves the run to its end.
    ///
    /// *Blocks*. *Errors*: signal handlers or the thread of the output cannot be had.
    pub fn serve(
        self,
        plan: HostConfig,
        tell: impl FnMut(HostNews<'_>) + Send + 'static,
    ) -> io::Result<HostEnd> {
        let Self { runtime, mut caller, link, setup } = self;
        caller.timeouts = plan.timeouts;
        let end = runtime.block_on(host::serve(caller, link, setup, plan, Arc::new(Mutex::new(tell))));
        runtime.shutdown_timeout(Duration::from_millis(100));
        end
    }
}

//! Asks the supervisor of a run how the run is: a link with the run's token, one stream, one answer.
//!
//! Whoever asks takes no place of a node, and the supervisor's machine does not hear of it.

use crate::gateway::tuning;
use crate::uplink::{UplinkError, is_for_good, unspecified};
use dtrain_protocol::Timeouts;
use dtrain_telemetry::Progress;
use dtrain_transport::quic::{Endpoint, Identity, LinkError};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// The longest answer: that of tens of thousands of ranks. *Units*: bytes.
const LONGEST_ANSWER: usize = 64 << 20;

/// How the run is whose first host is at one of these addresses.
///
/// *Blocks* for at most `patience` an address. *Errors*: nobody answers, or does not trust the token.
pub fn visit(
    masters: &[SocketAddr],
    identity: &Identity,
    patience: Duration,
) -> Result<Progress, UplinkError> {
    let system = |what, error: io::Error| UplinkError::System { what, error: error.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| system("start", error))?;
    let mut last = "there is no address".to_owned();
    for master in masters {
        let asked = async { timeout(patience, ask(*master, identity)).await };
        match runtime.block_on(asked) {
            Ok(Ok(progress)) => return Ok(progress),
            Ok(Err(Refused::Untrusted(error))) => return Err(UplinkError::Untrusted(error)),
            Ok(Err(Refused::Other(what))) => last = what,
            Err(_) => last = format!("{master} did not answer"),
        }
    }
    Err(UplinkError::Unreachable { masters: masters.to_vec(), waited: patience, last })
}

enum Refused {
    Untrusted(LinkError),
    Other(String),
}

async fn ask(master: SocketAddr, identity: &Identity) -> Result<Progress, Refused> {
    let other = |error: &dyn std::fmt::Display| Refused::Other(error.to_string());
    let timeouts = Timeouts::derive(Duration::from_secs(1)).expect("a second is in range");
    let from = SocketAddr::new(unspecified(master), 0);
    let endpoint = Endpoint::bind(from, identity, tuning(&timeouts)).map_err(|error| other(&error))?;
    let connection = match endpoint.connect(master).await {
        Ok(connection) => connection,
        Err(error @ (LinkError::Untrusted { .. } | LinkError::Refused { .. })) if is_for_good(&error) => {
            return Err(Refused::Untrusted(error));
        }
        Err(error) => return Err(other(&error)),
    };
    let (_send, mut recv) = connection.open_status().await.map_err(|error| other(&error))?;
    let answer = recv.read_to_end(LONGEST_ANSWER).await;
    connection.close();
    let _ = timeout(Duration::from_millis(100), endpoint.dialler().closed()).await;
    let answer = answer.map_err(|error| Refused::Other(format!("{master} gives no answer: {error}")))?;
    serde_json::from_slice(&answer)
        .map_err(|error| Refused::Other(format!("{master} answers something else: {error}")))
}

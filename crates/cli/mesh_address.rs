//! The addresses of a host for the links between the ranks of several hosts.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The addresses of a host for the links between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAddress {
    /// Where its ranks listen.
    pub listen: IpAddr,
    /// Where others reach them.
    pub reached_at: IpAddr,
}

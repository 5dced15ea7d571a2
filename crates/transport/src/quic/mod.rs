//! Links between hosts: QUIC with mutual TLS from one shared token.
//!
//! [`Token`] is the secret, [`Identity`] what a process makes of it, [`Endpoint`] its socket with a gate that strangers do
//! not pass, [`Connection`] a link with typed streams. [`MeshPort`] and [`QuicMesh`] carry the frames of collectives between hosts. Everything that leaves the host is encrypted and comes from a
//! holder of the token; nothing that is received is ever executed, and every length is bounded before memory is given.
//!
//! It does not know what the control plane says, or what is summed.

mod board;
mod bursts;
mod connection;
mod endpoint;
mod error;
mod floor;
mod gate;
mod identity;
mod io_thread;
mod mesh;
mod pace;
mod path;
mod port;
mod token;
mod tuning;
mod wire;

pub use connection::{Connection, Kind};
pub use endpoint::{Dialler, Endpoint};
pub use error::{LinkError, Refusal};
pub use identity::{Identity, IdentityError, ValidityWindow};
pub use io_thread::{IoThread, Lender};
pub use mesh::{MESH_SEGMENT, MeshError, MeshPlan, QuicMesh};
pub use port::MeshPort;
pub use quinn::{RecvStream, SendStream};
pub use token::{Token, TokenError};
pub use tuning::{LARGEST_DATAGRAM, Tuning};
pub use wire::WireError;

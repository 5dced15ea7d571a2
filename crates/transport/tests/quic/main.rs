//! Links over real sockets, links in virtual time, and meshes over both.

mod capture;
mod clusters;
mod cut;
mod flood;
mod hostile;
mod killed;
mod links;
mod lossy;
mod meshes;
mod rounding;
mod strangers;
mod virtual_time;

// The same made-up gradients and plain sums that the pure machines are held against.

// Steps that are offered before they are computed to the end.
#[path = "../../../collective/tests/collectives/offered.rs"]
mod offered;
#[path = "../../../collective/tests/collectives/piecewise.rs"]
mod piecewise;

// The same sums with every node rounded.

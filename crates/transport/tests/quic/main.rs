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

//! The running server, from its sockets to its disks. Most tests run on both I/O engines.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

#[path = "../common/mod.rs"]
mod common;
mod oracle;
mod server;

/// Makes two tests of each function, one for each I/O engine.
macro_rules! on_both_engines {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        $(mod $name {
            $(#[$attribute])*
            #[test]
            fn io_uring() {
                super::$name(forebay_runtime::Engine::IoUring);
            }

            $(#[$attribute])*
            #[test]
            fn epoll() {
                super::$name(forebay_runtime::Engine::Epoll);
            }
        })*
    };
}

mod background;
mod caching;
mod calibrate;
mod data;
mod deadlines;
mod discard;
mod faults;
mod grow;
mod guard;
mod handshake;
mod hanging;
mod hold_out;
mod journal;
mod long_erases;
mod mirror;
mod move_journal;
mod pieces;
mod pins;
mod power;
mod presence;
mod recording;
mod reliance;
mod shares;
mod slow;
mod stalls;
mod statistics;
mod taken_over;
mod tls;
mod transmission;
mod vault;
mod volumes;
mod warm_up;

//! Many hostile clients: connections that overlap, that read little or nothing, that are
//! half-closed, closed, or reset.

use super::script::{TargetVolume, script};
use crate::content::LoadRandom;
use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Connections that one thread holds open at once, at most.
const OPEN_MAX: usize = 48;
/// Bytes of one receive.
const RECEIVE_BYTES: usize = 64 << 10;
/// Pause of a thread that can open no more connections.
const REST: Duration = Duration::from_millis(1);

/// The server's addresses.
#[derive(Clone, Debug)]
pub struct CrowdTarget {
    /// Its Unix socket.
    pub socket: PathBuf,
    /// Its TCP port on this machine.
    pub port: u16,
}

/// State shared by all threads of a crowd.
#[derive(Debug, Default)]
pub struct HostileCrowd {
    /// Connections opened so far.
    pub opened: AtomicU64,
    /// Set when all clients are to disconnect.
    pub is_over: AtomicBool,
}

/// How a client reads replies.
#[derive(Clone, Copy, Debug)]
enum ReadStyle {
    Nothing,
    Little,
    Everything,
}

struct CrowdSession {
    socket: OwnedFd,
    is_tcp: bool,
    script: Vec<u8>,
    sent: usize,
    reading: ReadStyle,
}

impl CrowdSession {
    fn open(random: &mut LoadRandom, target: &CrowdTarget, volume: &TargetVolume) -> Result<Self> {
        let is_tcp = random.below(4) == 0;
        let socket: OwnedFd = if is_tcp {
            TcpStream::connect(("127.0.0.1", target.port))?.into()
        } else {
            UnixStream::connect(&target.socket)?.into()
        };
        let reading = match random.below(4) {
            0 => ReadStyle::Nothing,
            1 => ReadStyle::Everything,
            _ => ReadStyle::Little,
        };
        Ok(Self { socket, is_tcp, script: script(random, volume), sent: 0, reading })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends and receives a little without blocking. Returns whether the connection is still open.
    fn exchange(&mut self, random: &mut LoadRandom, buffer: &mut [u8]) -> bool {
        if self.sent < self.script.len() {
            let rest = &self.script[self.sent..];
            // Sometimes in small pieces, to split headers and payloads.
            let len = if random.below(4) == 0 { 1 + random.below(64) as usize } else { rest.len() };
            let piece = &rest[..len.min(rest.len())];
            match send(self.fd(), piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        let len = match self.reading {
            ReadStyle::Nothing => return true,
            ReadStyle::Little => 1 + random.below(4096) as usize,
            ReadStyle::Everything => buffer.len(),
        };
        match recv(self.fd(), &mut buffer[..len], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Shuts down one or both directions.
    fn close_half(&self, random: &mut LoadRandom) {
        let how = [Shutdown::Write, Shutdown::Read, Shutdown::Both][random.below(3) as usize];
        // The server may have closed it first.
        let _ = shutdown(self.fd(), how);
    }

    /// Disconnects: with a reset, or a normal close.
    fn leave(self, random: &mut LoadRandom) {
        if self.is_tcp && random.below(2) == 0 {
            // If that fails, the close is an orderly one, which will do.
            let zero = Some(Duration::ZERO);
            let _ = rustix::net::sockopt::set_socket_linger(&self.socket, zero);
        }
    }
}

/// One thread of hostile clients, until `crowd` is over or has opened `quota` connections. Open
/// connections then stay open until it is over.
///
/// # Errors
/// If the server accepts no connection before the crowd is over.
pub fn attack(
    crowd: &HostileCrowd,
    quota: u64,
    mut random: LoadRandom,
    target: &CrowdTarget,
    volume: &TargetVolume,
) -> Result<()> {
    let mut open: Vec<CrowdSession> = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut is_refused = None;
    while !crowd.is_over.load(Ordering::Relaxed) {
        let may_open = is_refused.is_none() && crowd.opened.load(Ordering::Relaxed) < quota;
        if may_open {
            match CrowdSession::open(&mut random, target, volume) {
                Ok(session) => {
                    crowd.opened.fetch_add(1, Ordering::Relaxed);
                    open.push(session);
                }
                Err(error) => is_refused = Some(error),
            }
        } else {
            std::thread::sleep(REST);
        }
        for _ in 0..3 {
            if open.is_empty() {
                break;
            }
            let at = random.below(open.len() as u64) as usize;
            if random.below(16) == 0 {
                open[at].close_half(&mut random);
            }
            let is_open = open[at].exchange(&mut random, &mut buffer);
            if may_open && (!is_open || open.len() > OPEN_MAX) {
                open.swap_remove(at).leave(&mut random);
            }
        }
        if may_open && random.below(512) == 0 {
            // All at once, like a client machine with many disks that is switched off.
            open.drain(..).for_each(|session| session.leave(&mut random));
        }
    }
    match is_refused {
        Some(error) if crowd.opened.load(Ordering::Relaxed) < quota => {
            Err(error).context("a hostile client cannot connect")
        }
        _ => Ok(()),
    }
}

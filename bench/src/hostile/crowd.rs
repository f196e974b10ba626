//! A crowd of hostile clients: overlapping connections that read little or nothing, and end by a
//! half-close, a close or a reset.

use super::script::{Terrain, script};
use crate::content::Random;
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
/// How long a thread rests that can open nothing more.
const REST: Duration = Duration::from_millis(1);

/// Where the server listens.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its Unix socket.
    pub socket: PathBuf,
    /// Its TCP port on this machine.
    pub port: u16,
}

/// State shared by all threads of a crowd.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Connections opened so far.
    pub opened: AtomicU64,
    /// Set when everybody is to leave.
    pub is_over: AtomicBool,
}

/// How a client receives.
#[derive(Clone, Copy, Debug)]
enum Appetite {
    Nothing,
    Little,
    Everything,
}

struct Session {
    socket: OwnedFd,
    is_tcp: bool,
    script: Vec<u8>,
    sent: usize,
    appetite: Appetite,
}

impl Session {
    fn open(random: &mut Random, target: &Target, terrain: &Terrain) -> Result<Self> {
        let is_tcp = random.below(4) == 0;
        let socket: OwnedFd = if is_tcp {
            TcpStream::connect(("127.0.0.1", target.port))?.into()
        } else {
            UnixStream::connect(&target.socket)?.into()
        };
        let appetite = match random.below(4) {
            0 => Appetite::Nothing,
            1 => Appetite::Everything,
            _ => Appetite::Little,
        };
        Ok(Self { socket, is_tcp, script: script(random, terrain), sent: 0, appetite })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends and receives a little without waiting. Returns whether the connection still stands.
    fn go_on(&mut self, random: &mut Random, buffer: &mut [u8]) -> bool {
        if self.sent < self.script.len() {
            let rest = &self.script[self.sent..];
            // Sometimes in small pieces, so that headers and payloads come apart.
            let len = if random.below(4) == 0 { 1 + random.below(64) as usize } else { rest.len() };
            let piece = &rest[..len.min(rest.len())];
            match send(self.fd(), piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        let len = match self.appetite {
            Appetite::Nothing => return true,
            Appetite::Little => 1 + random.below(4096) as usize,
            Appetite::Everything => buffer.len(),
        };
        match recv(self.fd(), &mut buffer[..len], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Says in some way that it will send or receive no more.
    fn close_half(&self, random: &mut Random) {
        let how = [Shutdown::Write, Shutdown::Read, Shutdown::Both][random.below(3) as usize];
        // The server may have closed it first.
        let _ = shutdown(self.fd(), how);
    }

    /// Leaves: with a reset, or as the system closes it.
    fn leave(self, random: &mut Random) {
        if self.is_tcp && random.below(2) == 0 {
            // Without it the end is an orderly one, which is as good.
            let zero = Some(Duration::ZERO);
            let _ = rustix::net::sockopt::set_socket_linger(&self.socket, zero);
        }
    }
}

/// One thread of hostile clients, until `crowd` is over or has opened `quota` connections. Those
/// that are open then stay so until it is over.
///
/// # Errors
/// Fails if the server stops accepting connections before the crowd is done.
pub fn attack(
    crowd: &Crowd,
    quota: u64,
    mut random: Random,
    target: &Target,
    terrain: &Terrain,
) -> Result<()> {
    let mut open: Vec<Session> = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut is_refused = None;
    while !crowd.is_over.load(Ordering::Relaxed) {
        let goes_on = is_refused.is_none() && crowd.opened.load(Ordering::Relaxed) < quota;
        if goes_on {
            match Session::open(&mut random, target, terrain) {
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
            let stands = open[at].go_on(&mut random, &mut buffer);
            if goes_on && (!stands || open.len() > OPEN_MAX) {
                open.swap_remove(at).leave(&mut random);
            }
        }
        if goes_on && random.below(512) == 0 {
            // All at once, as when a machine with many disks is switched off.
            open.drain(..).for_each(|session| session.leave(&mut random));
        }
    }
    match is_refused {
        Some(error) if crowd.opened.load(Ordering::Relaxed) < quota => {
            Err(error).context("a hostile client can't connect")
        }
        _ => Ok(()),
    }
}

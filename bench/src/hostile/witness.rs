//! A well-behaved client beside hostile ones: it writes to its own part of the volume, reads it
//! back, and knows every byte of it.

use crate::content::LoadRandom;
use crate::wire::{self, REPLY_BYTES, WireCommand, WireReply, WireRequest};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest read or write, in sectors of 512 bytes: long enough to be received into the pool.
const SECTORS_MAX: u64 = 128;
/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the module's description.
pub struct Witness {
    stream: UnixStream,
    random: LoadRandom,
    /// Start of its part of the volume, in bytes.
    start: u64,
    content: Vec<u8>,
    requests: u64,
}

impl Witness {
    /// Enters `export`; `len` bytes from `start` on are zero and belong to the witness.
    pub fn enter(
        socket: &Path,
        export: &str,
        (start, len): (u64, u64),
        random: LoadRandom,
    ) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).context("the witness cannot connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        wire::open_export(&mut stream, export)?;
        Ok(Self { stream, random, start, content: vec![0; len as usize], requests: 0 })
    }

    /// Writes and reads until `is_over`. The connection stays open.
    pub fn work(&mut self, is_over: &AtomicBool) -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            let kind = self.random.below(100);
            let len = 512 * (1 + self.random.below(SECTORS_MAX));
            let offset = 512 * self.random.below((self.content.len() as u64 - len) / 512 + 1);
            self.requests += 1;
            match kind {
                0..50 => self.read(offset, len),
                50..90 => self.write(offset, len),
                90..98 => self.zero(offset, len),
                _ => self.ask(WireCommand::Flush, 0, 0, &[]),
            }
            .with_context(|| format!("the witness's request {} at {offset}", self.requests))?;
        }
        Ok(())
    }

    /// Requests answered so far.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// The content of its part of the volume.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    fn read(&mut self, offset: u64, len: u64) -> Result<()> {
        self.ask(WireCommand::Read, offset, len, &[])?;
        let mut bytes = vec![0; len as usize];
        self.stream
            .read_exact(&mut bytes)
            .context("the server does not send the data of a read")?;
        let expected = &self.content[offset as usize..][..bytes.len()];
        let wrong = bytes.iter().zip(expected).position(|(got, expected)| got != expected);
        ensure!(wrong.is_none(), "byte {} of a read of {len} is wrong", wrong.unwrap_or(0));
        Ok(())
    }

    fn write(&mut self, offset: u64, len: u64) -> Result<()> {
        let seed = self.random.next_u64();
        let range = offset as usize..(offset + len) as usize;
        crate::content::fill(&mut self.content[range.clone()], offset, seed);
        let payload = self.content[range].to_vec();
        self.ask(WireCommand::Write, offset, len, &payload)
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<()> {
        self.content[offset as usize..(offset + len) as usize].fill(0);
        self.ask(WireCommand::WriteZeroes, offset, len, &[])
    }

    fn ask(&mut self, command: WireCommand, offset: u64, len: u64, payload: &[u8]) -> Result<()> {
        let (cookie, len) = (self.requests, u32::try_from(len)?);
        let offset = if command == WireCommand::Flush { 0 } else { self.start + offset };
        let request = WireRequest { command, flags: 0, cookie, offset, len };
        self.stream.write_all(&request.encode())?;
        self.stream.write_all(payload)?;
        let mut reply = [0; REPLY_BYTES];
        self.stream.read_exact(&mut reply).context("no answer")?;
        let reply = WireReply::decode(&reply)?;
        ensure!(reply == WireReply { errno: 0, cookie }, "{command:?}: answered {reply:?}");
        Ok(())
    }
}

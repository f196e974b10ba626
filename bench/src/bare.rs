//! The bare server: the cost of a batching server that only copies.
//!
//! One thread per connection. One receive takes all requests in the socket, each is copied from or
//! to an [`SharedArea`], and all replies leave in one send. It keeps no index, no dirty bits, no
//! statistics: the additional cost of a caching server is the cost of the cache. It is a baseline,
//! so it supports only read, write, flush and disconnect.

use crate::area::SharedArea;
use crate::wire::{self, REPLY_BYTES, REQUEST_BYTES, WireCommand, WireReply, WireRequest};
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

/// Bytes per receive. Larger than the default buffer of a Unix socket, so that one call empties it.
const INPUT_BYTES: usize = 512 << 10;
/// Replies are sent before they exceed this, in bytes, so that a deep queue of large reads does not
/// evict the processor's cache.
const OUTPUT_BYTES_MAX: usize = 512 << 10;
/// The longest permitted read, in bytes, as the protocol recommends.
const READ_BYTES_MAX: u32 = 32 << 20;

const EINVAL: u32 = 22;

/// Listens on a Unix socket at `path` and serves `area`. Returns only on failure.
pub fn serve(path: &Path, area: Arc<SharedArea>) -> Result<()> {
    let listener = UnixListener::bind(path)
        .with_context(|| format!("listening on {}: remove it if it is stale", path.display()))?;
    loop {
        let (stream, _) = listener.accept().context("accepting a connection")?;
        let area = Arc::clone(&area);
        std::thread::spawn(move || {
            if let Err(error) = serve_connection(stream, &area) {
                eprintln!("bare-server: connection ended: {error:#}");
            }
        });
    }
}

/// Serves one connection until the client leaves.
pub fn serve_connection(mut stream: UnixStream, area: &SharedArea) -> Result<()> {
    if !wire::accept_client(&mut stream, area.size_bytes())? {
        return Ok(());
    }
    let mut connection = BareConn::new(area);
    let mut input = vec![0; INPUT_BYTES];
    let mut filled = 0;
    loop {
        let received = match stream.read(&mut input[filled..]) {
            Ok(0) => return Ok(()),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error).context("receiving"),
        };
        filled += received;
        let used = connection.take(&input[..filled], &mut stream)?;
        if !connection.output.is_empty() {
            stream.write_all(&connection.output).context("sending")?;
            connection.output.clear();
        }
        let Some(used) = used else { return Ok(()) };
        // The rest is less than one header, so this moves at most 27 bytes.
        input.copy_within(used..filled, 0);
        filled -= used;
    }
}

/// A write whose payload is still arriving.
struct PendingWrite {
    offset: u64,
    remaining: usize,
    reply: WireReply,
}

struct BareConn<'a> {
    area: &'a SharedArea,
    output: Vec<u8>,
    pending: Option<PendingWrite>,
}

impl<'a> BareConn<'a> {
    fn new(area: &'a SharedArea) -> Self {
        Self { area, output: Vec::with_capacity(2 * OUTPUT_BYTES_MAX), pending: None }
    }

    /// Serves all complete requests in `input`. Returns their bytes, or `None` after a disconnect.
    fn take(&mut self, input: &[u8], stream: &mut UnixStream) -> Result<Option<usize>> {
        let mut at = 0;
        loop {
            if let Some(write) = &mut self.pending {
                let piece = write.remaining.min(input.len() - at);
                if write.reply.errno == 0 {
                    self.area.write(write.offset, &input[at..at + piece]);
                    write.offset += piece as u64;
                }
                at += piece;
                write.remaining -= piece;
                if write.remaining > 0 {
                    return Ok(Some(at));
                }
                self.output.extend(write.reply.encode());
                self.pending = None;
            }
            let Some(header) = input[at..].first_chunk::<REQUEST_BYTES>() else {
                return Ok(Some(at));
            };
            let request = WireRequest::decode(header)?;
            at += REQUEST_BYTES;
            if request.command == WireCommand::Disconnect {
                return Ok(None);
            }
            self.start(&request);
            if self.output.len() >= OUTPUT_BYTES_MAX {
                stream.write_all(&self.output).context("sending")?;
                self.output.clear();
            }
        }
    }

    fn start(&mut self, request: &WireRequest) {
        let inside = self.area.contains(request.offset, u64::from(request.len));
        let errno = if inside { 0 } else { EINVAL };
        let reply = WireReply { errno, cookie: request.cookie };
        match request.command {
            WireCommand::Read if inside && request.len <= READ_BYTES_MAX => {
                let len = request.len as usize;
                self.output.reserve(REPLY_BYTES + len);
                self.output.extend(reply.encode());
                self.area.read(request.offset, len, &mut self.output);
            }
            WireCommand::Write => {
                self.pending = Some(PendingWrite {
                    offset: request.offset,
                    remaining: request.len as usize,
                    reply,
                });
            }
            WireCommand::Flush => {
                self.output.extend(WireReply { errno: 0, cookie: request.cookie }.encode());
            }
            _ => self.output.extend(WireReply { errno: EINVAL, ..reply }.encode()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `input` in pieces of `chunk` bytes to a connection and returns its answers.
    fn converse(area: &Arc<SharedArea>, input: &[u8], chunk: usize) -> Vec<u8> {
        let (mut client, server) = UnixStream::pair().unwrap();
        let area = Arc::clone(area);
        let thread = std::thread::spawn(move || serve_connection(server, &area).unwrap());
        wire::open_export(&mut client, "").unwrap();
        for piece in input.chunks(chunk) {
            client.write_all(piece).unwrap();
        }
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        thread.join().unwrap();
        answer
    }

    fn request(command: WireCommand, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
        WireRequest { command, flags: 0, cookie, offset, len }.encode().to_vec()
    }

    #[test]
    fn a_batch_is_answered_in_order_however_it_is_cut() {
        let payload: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
        let mut input = request(WireCommand::Write, 1, 4096, 4096);
        input.extend(&payload);
        input.extend(request(WireCommand::Flush, 2, 0, 0));
        input.extend(request(WireCommand::Read, 3, 4096, 4096));
        input.extend(request(WireCommand::Disconnect, 4, 0, 0));
        let mut expected = Vec::new();
        for cookie in 1..=3 {
            expected.extend(WireReply { errno: 0, cookie }.encode());
        }
        expected.extend(&payload);
        for chunk in [1, 27, 29, 100_000] {
            let area = Arc::new(SharedArea::new(64 << 10).unwrap());
            assert!(converse(&area, &input, chunk) == expected, "cut into pieces of {chunk}");
        }
    }

    #[test]
    fn what_is_out_of_range_or_unknown_fails_and_keeps_step() {
        let area = Arc::new(SharedArea::new(8192).unwrap());
        let mut input = request(WireCommand::Read, 1, 8192, 512);
        input.extend(request(WireCommand::Write, 2, u64::MAX, 16));
        input.extend([7; 16]);
        input.extend(request(WireCommand::Trim, 3, 0, 512));
        input.extend(request(WireCommand::Flush, 4, 0, 0));
        input.extend(request(WireCommand::Disconnect, 5, 0, 0));
        let answer = converse(&area, &input, 1000);
        let errors: Vec<u32> = answer
            .chunks_exact(REPLY_BYTES)
            .map(|reply| WireReply::decode(reply.try_into().unwrap()).unwrap().errno)
            .collect();
        assert_eq!(errors, [EINVAL, EINVAL, EINVAL, 0]);
    }
}

//! Creates seeds for all NBD targets from client byte streams.
//!
//! `cargo run --example seeds -- STREAMS CORPUS` reads every file of the folder STREAMS, a stream
//! from the client flags on. The server targets get it unchanged; the client target gets the
//! server's answers, and replies in every form.

use forebay_fuzz::nbd::{serve, terms};
use forebay_nbd::{ReplyTo, Tls};
use forebay_types::IoError;
use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(streams), Some(corpus)) = (args.next(), args.next()) else {
        return Err(io::Error::other("usage: seeds STREAMS CORPUS"));
    };
    let corpus = Path::new(&corpus);
    let folders = ["nbd_handshake", "nbd_transmission", "nbd_client"].map(|name| corpus.join(name));
    for folder in &folders {
        fs::create_dir_all(folder)?;
    }
    let [handshake, transmission, client] = folders;
    for entry in fs::read_dir(streams)? {
        let entry = entry?;
        let stream = fs::read(entry.path())?;
        fs::write(handshake.join(entry.file_name()), &stream)?;
        fs::write(transmission.join(entry.file_name()), &stream)?;
        let answers = serve(Tls::Off, &stream, usize::MAX).out;
        let said = [&b"\x06NBDMAGICIHAVEOPT\0\x03"[..], &answers].concat();
        fs::write(client.join(entry.file_name()), said)?;
    }
    for choice in 0..3 {
        fs::write(client.join(format!("replies-{choice}")), replies(choice))?;
    }
    Ok(())
}

/// One reply to each request in flight of the client target.
fn replies(choice: u8) -> Vec<u8> {
    let terms = terms(choice);
    let mut out = vec![128 | choice];
    let to = |cookie| ReplyTo { cookie, offset: 4096 };
    terms.reply_read_header(to(0), 4096, &mut out);
    out.resize(out.len() + 4096, 0);
    if terms.structured {
        terms.put_data_chunk_header(to(1), 4096, 512, false, &mut out);
        out.resize(out.len() + 512, 0);
        terms.put_hole_chunk(to(1), 4096 + 512, 3584, true, &mut out);
    }
    terms.reply_error(to(2), IoError::NoSpace, "the disk is full", &mut out);
    terms.reply_error(to(3), IoError::Io, "", &mut out);
    out
}

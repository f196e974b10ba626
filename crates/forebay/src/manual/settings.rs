//! The page of the configuration file, forebay.toml(5), made of the tables of the settings.

use super::{MANUAL, list, source};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use forebay_types::{PROGRAM_SETTINGS, Setting, VOLUME_SETTINGS};

/// What the capitals among the values of settings stand for.
const VALUES: [(&str, &str); 8] = [
    ("SIZE", "Bytes, as in 4096, 512MiB or 1.5GiB. K, M, G and T mean KiB, MiB, GiB and TiB."),
    ("TIME", "A number with a unit: us, ms, s, min or h, as in 20ms or 24h."),
    ("RANGES", "OFFSET+LENGTH, both as sizes; several are separated by commas."),
    ("ADDRESS", "unix:PATH or tcp:HOST:PORT; IPv6 is in brackets, and port 0 is any free one."),
    ("FILE, DIR, PATH", "A path; the user of the service has to be able to reach it."),
    (
        "BACKING",
        "A path of a disk or an image file, memory:SIZE, nbd://HOST/EXPORT, \
        nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE or s3://BUCKET/PREFIX.",
    ),
    ("1-64", "A number of this range."),
    ("...", "There may be several, as a TOML array."),
];

const FILES: [(&str, &str); 2] = [
    ("/etc/forebay/forebay.toml", "The file of the service."),
    ("/usr/share/doc/forebay/examples/forebay.toml", "Every setting, as a comment."),
];

/// The text of the page.
pub(super) fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["forebay.toml", "5", "", &source(), MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("forebay.toml - configuration file of the block cache Forebay")]);
    description(&mut roff);
    roff.control("SH", ["SETTINGS OF THE SERVER"]);
    settings(&mut roff, &PROGRAM_SETTINGS, "A change needs a restart.");
    roff.control("SH", ["SETTINGS OF A VOLUME"]);
    paragraph(
        &mut roff,
        "Each section `[[volume]]` is a volume. Its `name` is the one that clients use, and its \
         `backing` is the disk; both are needed. All other keys have defaults.",
    );
    settings(
        &mut roff,
        &VOLUME_SETTINGS,
        "A change needs the volume to be removed and added again.",
    );
    list(&mut roff, "VALUES", &VALUES);
    example(&mut roff);
    list(&mut roff, "FILES", &FILES);
    roff.control("SH", ["SEE ALSO"]);
    let others = ["forebay-serve", "forebay-reload", "forebay-volume-set"];
    roff.text([bold(others.join("(1), ")), roman("(1)")]);
    roff.render()
}

fn description(roff: &mut Roff) {
    roff.control("SH", ["DESCRIPTION"]);
    for text in [
        "`forebay serve --config` FILE reads its settings from a TOML file. Keys of the server \
         come first, then a section `[[volume]]` for each volume. Every key of the server is an \
         option of `forebay serve` as well, which overrides the file, except `ups-user`, \
         `ups-password` and `ups-ca`.",
        "`forebay serve --check --config` FILE checks the file. `forebay reload` applies its \
         changes to the running server; what cannot change while it runs is said below and in the \
         log.",
    ] {
        paragraph(roff, text);
    }
}

fn example(roff: &mut Roff) {
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in [
        "memory = \"4GiB\"",
        "",
        "[[volume]]",
        "name = \"data\"",
        "backing = \"/dev/disk/by-id/ata-DISK\"",
        "mode = \"write-back\"",
        "protection = \"journal\"",
        "journal = \"/dev/disk/by-id/nvme-SSD-part2\"",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// A paragraph, with the words between backquotes in bold.
fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text(marked(text));
}

fn marked(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

/// A list of settings. `fixed` says what the change of one takes that cannot change live.
fn settings(roff: &mut Roff, table: &[Setting], fixed: &str) {
    for Setting { key, values, default, is_live, help } in table {
        roff.control("TP", []);
        roff.text([bold(*key), roman(" = "), italic(values.replace('|', " | "))]);
        let mut text = marked(help);
        text.push(roman("."));
        roff.text(text);
        if !default.is_empty() {
            roff.text([roman("Default: "), bold(*default), roman(".")]);
        }
        if !is_live {
            roff.text([roman(fixed)]);
        }
    }
}

//! Errors of the command line: what is wrong, and what to write instead, in one line.
//!
//! A word that another cache or another program uses has the answer of this one. Words with a
//! similar spelling come second, because the most similar command can do harm.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use forebay_config::nearest;
use forebay_types::{Setting, VOLUME_SETTINGS};

/// The error as one line, with its remedy.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let command = command_of(error);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let named = texts(error, ContextKind::InvalidSubcommand).concat();
            let remedy = match &*command {
                "forebay" => known_command(&named),
                "forebay volume" => known_volume_command(&named),
                _ => None,
            };
            let remedy = remedy.map_or_else(|| similar_command(error, &command), str::to_owned);
            format!("unrecognized subcommand '{named}': {remedy}")
        }
        ErrorKind::UnknownArgument => {
            let named = texts(error, ContextKind::InvalidArg).concat();
            format!("unexpected argument '{named}': {}", known_option(error, &command, &named))
        }
        _ => {
            let page = error.to_string();
            // The message ends at the first empty line. Lists in it have a line for each item.
            let message = page.trim_start_matches("error: ").split("\n\n").next();
            let words: Vec<_> = message.into_iter().flat_map(str::split_whitespace).collect();
            format!("{}: {}", words.join(" "), help_of(&command))
        }
    }
}

/// The texts of a part of the error.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The command that the error is about: the program and its subcommands.
fn command_of(error: &clap::Error) -> String {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let words = usage.split_whitespace().skip_while(|word| *word != "forebay");
    let words: Vec<_> =
        words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    if words.is_empty() { "forebay".into() } else { words.join(" ") }
}

fn help_of(command: &str) -> String {
    match command {
        "forebay" => "`forebay --help` lists the commands".into(),
        _ => format!("`{command} --help` shows what it takes"),
    }
}

fn similar_command(error: &clap::Error, command: &str) -> String {
    let named = texts(error, ContextKind::InvalidSubcommand).concat();
    let similar = nearest(&named, texts(error, ContextKind::SuggestedSubcommand));
    let help = match command {
        "forebay" => help_of(command),
        _ => format!("`{command} --help` lists the subcommands"),
    };
    similar.map_or(help.clone(), |best| format!("did you mean '{best}'? {help}"))
}

/// The equivalent of a command that other caches have.
fn known_command(named: &str) -> Option<&'static str> {
    Some(match named {
        "monitor" | "watch" => {
            "`forebay top` is a monitor, and `forebay status --watch` prints repeatedly"
        }
        "freeze" | "snapshot" | "quiesce" | "sync" => {
            "`forebay volume flush NAME` writes a volume's dirty data to its disk; it does not \
             hold writes, so stop the programs that write first"
        }
        "prefetch" | "evict" | "drop" => {
            "the eviction policy decides what stays in memory: keep a range there with `forebay \
             pin NAME RANGE`, enlarge the cache with `forebay set memory=SIZE`, or exclude a \
             volume with `forebay volume set NAME mode=bypass`"
        }
        "lab" => "the lab is another program: `forebay-lab` has the same subcommands",
        "start" | "run" | "daemon" => "`forebay serve` starts the daemon",
        "restart" => "`forebay upgrade` starts the server again and keeps what is in memory",
        "list" | "ls" | "volumes" | "devices" => "`forebay volume list` lists the volumes",
        "add" | "create" | "new" => "`forebay volume add NAME=BACKING` adds a volume",
        "flush" | "clean" => "`forebay volume flush NAME` writes a volume's dirty data to its disk",
        "trust" | "calibrate" | "thaw" | "remove" | "discard" => {
            "it is a command for a volume: see `forebay volume --help`"
        }
        "info" | "show" => "`forebay status` shows the server, and `forebay status NAME` a volume",
        "metrics" => "`forebay serve --metrics 127.0.0.1:9101` serves metrics for Prometheus",
        "resize" | "grow" | "shrink" => {
            "`forebay set memory=SIZE` changes the memory of the cache, and `forebay volume resize \
             NAME` makes a volume as large as its disk, which has grown"
        }
        "connect" | "map" | "mount" => {
            "`forebay attach NAME` makes a volume a block device of this machine, and any NBD \
             client attaches it to another one"
        }
        "disconnect" | "unmap" | "unmount" | "umount" => {
            "`forebay detach NAME` removes the block device of a volume"
        }
        _ => return None,
    })
}

/// The equivalent of a command for a volume that other programs have.
fn known_volume_command(named: &str) -> Option<&'static str> {
    Some(match named {
        "rename" | "mv" | "move" => {
            "a volume keeps its name while it is served: change it where the volume is configured, \
             or add the disk under the new name once its clients are gone and it is removed"
        }
        "ls" => "`forebay volume list` lists the volumes",
        "create" | "new" | "attach" => "`forebay volume add NAME=BACKING` adds a volume",
        "change" | "modify" | "edit" | "update" => {
            "`forebay volume set NAME KEY=VALUE` changes settings of a volume"
        }
        "show" | "info" | "status" | "get" => "`forebay status NAME` shows a volume",
        "stats" => "`forebay stats NAME` shows the statistics of a volume",
        "pin" => "`forebay pin NAME RANGE` keeps a range in memory",
        "unpin" => "`forebay unpin NAME RANGE` no longer keeps a range in memory",
        "sync" | "clean" => "`forebay volume flush NAME` writes a volume's dirty data to its disk",
        "grow" | "enlarge" | "extend" => {
            "`forebay volume resize NAME` makes a volume as large as its disk, which has grown"
        }
        "shrink" => {
            "a volume never shrinks: once its clients are gone, remove it, shrink its disk, and \
             add it again"
        }
        _ => return None,
    })
}

/// What to write instead of an option.
fn known_option(error: &clap::Error, command: &str, named: &str) -> String {
    let word = named.trim_start_matches('-').split('=').next().unwrap_or_default();
    let is_option = named.starts_with('-');
    if command == "forebay serve" && is_option {
        if let Some(remedy) = known_serve_option(word) {
            return remedy.into();
        }
        if let Some(setting) = Setting::find(word, &VOLUME_SETTINGS) {
            let Setting { key, values, .. } = setting;
            return format!(
                "{key} is a setting of a volume: write --volume NAME=BACKING,{key}={values}"
            );
        }
    }
    let suggested = texts(error, ContextKind::SuggestedArg);
    let similar = nearest(word, suggested.iter().map(|text| text.trim_start_matches('-')));
    similar.map_or_else(
        || help_of(command),
        |best| format!("did you mean '--{best}'? {}", help_of(command)),
    )
}

/// The equivalent of an option that the servers of other programs have.
fn known_serve_option(word: &str) -> Option<&'static str> {
    Some(match word {
        "listen" | "bind" | "address" | "addr" | "host" | "port" | "socket" | "unix" | "tcp"
        | "l" | "p" | "u" | "U" => {
            "write --nbd unix:PATH or --nbd tcp:HOST:PORT for the address of the clients"
        }
        "writeback" | "write-back" | "writethrough" | "write-through" | "cache-mode" | "w" => {
            "the mode is a setting of a volume: write --volume NAME=BACKING,mode=write-through"
        }
        "size" | "cache-size" | "cache" | "mem" | "ram" | "m" | "s" => {
            "write --memory SIZE for the memory of the cache, as in --memory 2GiB"
        }
        "c" | "conf" | "configuration" | "f" | "file" => "write --config FILE",
        "disk" | "device" | "backing" | "b" => {
            "name the disk without an option, as in `forebay serve /dev/sdb`"
        }
        "name" | "n" => "a volume has its name before its disk: write --volume NAME=BACKING",
        "r" | "readonly" => {
            "it is a setting of a volume: write --volume NAME=BACKING,read-only=yes"
        }
        "v" | "verbose" | "debug" => "write --log debug",
        "fork" | "d" | "daemonize" => {
            "the server stays in the foreground: start it as a service, or with & in a shell"
        }
        _ => return None,
    })
}

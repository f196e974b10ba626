//! Tests of the NUT protocol.

use super::*;
use proptest::prelude::*;

fn line(command: NutCommand) -> String {
    let mut output = Vec::new();
    command.encode(&mut output).unwrap();
    String::from_utf8(output).unwrap()
}

/// All events of `bytes`, pushed in pieces of `piece` bytes, up to and including a violation.
fn replies(bytes: &[u8], piece: usize) -> Vec<NutEvent> {
    let mut parser = NutParser::new();
    let mut events = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        parser.push(piece);
        loop {
            match parser.next() {
                NutEvent::NeedMore => break,
                event @ NutEvent::Broken(_) => {
                    events.push(event);
                    return events;
                }
                event => events.push(event),
            }
        }
    }
    events
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[test]
fn encodes_commands_with_quotes_where_needed() {
    assert_eq!(line(NutCommand::StartTls), "STARTTLS\n");
    assert_eq!(line(NutCommand::Username("watch")), "USERNAME watch\n");
    assert_eq!(line(NutCommand::Password("a \"b\\")), "PASSWORD \"a \\\"b\\\\\"\n");
    assert_eq!(line(NutCommand::Login("lab")), "LOGIN lab\n");
    assert_eq!(line(NutCommand::ListVar("lab")), "LIST VAR lab\n");
    assert_eq!(line(NutCommand::Logout), "LOGOUT\n");
}

#[test]
fn rejects_arguments_that_would_inject_a_command() {
    let mut output = Vec::new();
    for (argument, word) in [("a\nFSD lab", "control"), ("", "empty"), (&"x".repeat(513), "513")] {
        let error = NutCommand::Password(argument).encode(&mut output).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(output.is_empty());
}

#[test]
fn parses_replies_of_a_real_server() {
    let stream = b"OK\nOK STARTTLS\nERR DATA-STALE\nVAR lab ups.status \"OB DISCHRG\"\r\n\
        BEGIN LIST VAR lab\nVAR lab ups.model \"a \\\"b\\\\\"\nVAR lab ups.x \"\"\n\
        END LIST VAR lab\n";
    for piece in [1, 7, 4096] {
        let events = replies(stream, piece);
        let [ok, tls, stale, var, list] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*ok, NutEvent::Reply(NutReply::Ok(vec![])));
        assert_eq!(*tls, NutEvent::Reply(NutReply::Ok(words(&["STARTTLS"]))));
        let NutEvent::Reply(NutReply::Err(code)) = stale else { panic!("{stale:?}") };
        assert_eq!(code.as_str(), "DATA-STALE");
        assert!(code.to_string().contains("driver"), "{code}");
        let row = words(&["VAR", "lab", "ups.status", "OB DISCHRG"]);
        assert_eq!(*var, NutEvent::Reply(NutReply::Data(row)));
        let NutEvent::Reply(list) = list else { panic!("{list:?}") };
        let variables = list.variables("lab").unwrap();
        assert_eq!(variables, [("ups.model", "a \"b\\"), ("ups.x", "")]);
        assert_eq!(list.variables("other"), Err(ProtocolError::Unexpected));
    }
}

#[test]
fn error_inside_a_list_replaces_the_list() {
    let events = replies(b"BEGIN LIST VAR a\nVAR a b c\nERR DATA-STALE\nOK\n", 9);
    assert!(matches!(
        &events[..],
        [NutEvent::Reply(NutReply::Err(_)), NutEvent::Reply(NutReply::Ok(_))]
    ));
}

#[test]
fn detects_every_violation_and_stays_broken() {
    let long_list = format!("BEGIN LIST VAR a\n{}", "VAR a b c\n".repeat(LIST_ROWS_MAX + 1));
    let long_line = "x".repeat(LINE_BYTES_MAX + 1);
    let long_row = format!("{}\n", "x ".repeat(WORDS_MAX + 1));
    for (stream, breach) in [
        (&*long_list, ProtocolError::LongList),
        (&*long_line, ProtocolError::LongLine),
        (&*long_row, ProtocolError::ManyWords),
        ("VAR a b \"c\n", ProtocolError::Quote),
        ("VAR a b \"c\"d\n", ProtocolError::Quote),
        ("VAR a b c\"d\"\n", ProtocolError::Quote),
        ("VAR a b \"c\\\n", ProtocolError::Quote),
        ("END LIST VAR a\n", ProtocolError::ListOrder),
        ("BEGIN LIST VAR a\nBEGIN LIST VAR a\n", ProtocolError::ListOrder),
        ("BEGIN LIST VAR a\nEND LIST VAR b\n", ProtocolError::ListOrder),
        ("BEGIN LIST VAR a\nVAR b c d\n", ProtocolError::ForeignRow),
        ("\n", ProtocolError::Empty),
    ] {
        let stream = format!("{stream}\nOK\n");
        let events = replies(stream.as_bytes(), 5);
        assert_eq!(events.last(), Some(&NutEvent::Broken(breach)), "{stream:.40}");
        assert!(!breach.to_string().is_empty());
    }
    let mut parser = NutParser::new();
    parser.push(b"\n");
    assert_eq!(parser.next(), NutEvent::Broken(ProtocolError::Empty));
    parser.push(b"OK\n");
    assert_eq!(parser.next(), NutEvent::Broken(ProtocolError::Empty));
    assert!(!parser.is_idle());
}

#[test]
fn a_row_of_a_list_has_a_name_and_a_value() {
    for row in ["VAR a b", "VAR a b c d", "VAR a"] {
        let stream = format!("BEGIN LIST VAR a\n{row}\nEND LIST VAR a\n");
        let events = replies(stream.as_bytes(), 99);
        let NutEvent::Reply(reply) = &events[0] else { panic!("{events:?}") };
        assert_eq!(reply.variables("a"), Err(ProtocolError::ForeignRow));
    }
}

#[test]
fn is_idle_detects_bytes_after_a_reply() {
    let mut parser = NutParser::new();
    parser.push(b"OK STARTTLS\nVAR");
    assert!(matches!(parser.next(), NutEvent::Reply(_)));
    assert!(!parser.is_idle());
    let mut parser = NutParser::new();
    parser.push(b"OK STARTTLS\n");
    assert!(matches!(parser.next(), NutEvent::Reply(_)));
    assert!(parser.is_idle());
}

#[test]
fn replaces_invalid_utf8_and_control_characters() {
    assert_eq!(split_words(b"\xff \"a\x01b\"").unwrap(), ["\u{fffd}", "a\u{fffd}b"]);
}

proptest! {
    #[test]
    fn quoted_argument_parses_to_the_same(argument in "[^\\p{Cc}]{1,40}") {
        let said = line(NutCommand::Login(&argument));
        let words = split_words(said.trim_end_matches('\n').as_bytes()).unwrap();
        prop_assert_eq!(words, ["LOGIN", argument.as_str()]);
    }

    #[test]
    fn parsing_is_independent_of_fragmentation(
        bytes in proptest::collection::vec(
            prop_oneof![
                Just(b"BEGIN LIST VAR a\n".to_vec()), Just(b"END LIST VAR a\n".to_vec()),
                Just(b"VAR a b \"c\"\n".to_vec()), Just(b"ERR X\n".to_vec()),
                Just(b"\\".to_vec()), Just(b"\"".to_vec()), Just(b"\n".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..9),
            ], 0..30),
        piece in 1usize..50,
    ) {
        let bytes = bytes.concat();
        prop_assert_eq!(replies(&bytes, piece), replies(&bytes, 4096));
    }
}

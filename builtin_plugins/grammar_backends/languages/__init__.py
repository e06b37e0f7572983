"""Regular languages over Unicode text: character sets, automata, ECMA-262 regexes."""
